/* A solver of nothing, changed in five lines: observation {sum of actions, step, seed, ranks}.
 *
 * What else it does is asked for by its arguments: the step at which to do it, what, and the rank
 * of the group that does it. */
#include "hpcdi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void go_wrong(const char *how, MPI_Comm comm)
{
    if (strcmp(how, "abort") == 0) {
        MPI_Abort(MPI_COMM_WORLD, 3);
    } else if (strcmp(how, "fault") == 0) {
        *(volatile int *)0 = 1;
    } else if (strcmp(how, "exit") == 0) {
        exit(5);
    } else if (strcmp(how, "hang") == 0) {
        for (;;) {
            pause();
        }
    } else if (strcmp(how, "error") == 0) {
        MPI_Send(NULL, -1, MPI_INT, 0, 0, comm);
    }
}

int main(int argc, char **argv)
{
    int at = argc > 1 ? atoi(argv[1]) : -1, culprit = argc > 3 ? atoi(argv[3]) : 0;
    int order, rank, ranks, steps = 0, length = getenv("LENGTH") ? atoi(getenv("LENGTH")) : 1000000;
    int size = getenv("SIZE") ? atoi(getenv("SIZE")) : 4;
    double action[2], *observation = calloc((size_t)size, sizeof(double)), sum, own;
    MPI_Comm comm;
    hpcdi_init(size, 2, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    while ((order = hpcdi_recv_action(action)) != HPCDI_END) {
        if (order == HPCDI_RESET) {
            steps = 0;
            observation[0] = 0;
            printf("episode %ld %s\n", (long)hpcdi_seed(), hpcdi_state());
        } else {
            steps++;
            if (steps == at && rank == culprit) {
                printf("it goes wrong: %s\n", argv[2]);
                go_wrong(argv[2], comm);
            }
            own = (action[0] + action[1]) / ranks;
            MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, comm);
            observation[0] += sum;
        }
        observation[1] = steps;
        observation[2] = (double)hpcdi_seed();
        observation[3] = ranks;
        if (steps == at && strcmp(argv[2], "nan") == 0) {
            observation[0] = NAN;
        }
        hpcdi_info("steps", steps);
        hpcdi_send_observation(observation, size, -steps, 0, steps >= length);
    }
    hpcdi_finalize();
    free(observation);
    return 0;
}
