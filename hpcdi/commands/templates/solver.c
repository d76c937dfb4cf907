/* NAME: an environment on several MPI ranks to begin from; guide: hpcdi/env/MPI.md.
 *
 * A rod: each rank has a part of it. Observation: mean and mean square. Action: a heater. */
#include "hpcdi.h"

#include <math.h>
#include <stdio.h>

enum { POINTS = 16, OBSERVATIONS = 2, ACTIONS = 1 };

int main(void)
{
    double heat[POINTS + 2] = {0}, action[ACTIONS] = {0}, own[2], seen[OBSERVATIONS];
    int order, rank, ranks, steps = 0;
    MPI_Comm comm;
    hpcdi_init(OBSERVATIONS, ACTIONS, &comm); /* comm, and nobody uses MPI_COMM_WORLD */
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    while ((order = hpcdi_recv_action(action)) != HPCDI_END) {
        if (order == HPCDI_RESET) {
            for (int i = 1; i <= POINTS; i++) {
                heat[i] = sin((double)(hpcdi_seed() % 1000) + rank * POINTS + i);
            }
            steps = 0;
        } else {
            double before = 0;
            MPI_Sendrecv(&heat[POINTS], 1, MPI_DOUBLE, (rank + 1) % ranks, 0, &heat[0], 1,
                         MPI_DOUBLE, (rank + ranks - 1) % ranks, 0, comm, MPI_STATUS_IGNORE);
            heat[POINTS + 1] = heat[POINTS];
            before = heat[0];
            for (int i = 1; i <= POINTS; i++) {
                double now = heat[i];
                heat[i] += 0.25 * (before - 2 * now + heat[i + 1]) + 0.2 * action[0];
                before = now;
            }
            steps++;
        }
        own[0] = own[1] = 0;
        for (int i = 1; i <= POINTS; i++) {
            own[0] += heat[i] / (POINTS * ranks);
            own[1] += heat[i] * heat[i] / (POINTS * ranks);
        }
        MPI_Allreduce(own, seen, 2, MPI_DOUBLE, MPI_SUM, comm);
        hpcdi_info("mean", seen[0]);
        hpcdi_send_observation(seen, OBSERVATIONS, -seen[1], 0, steps == 50);
    }
    if (rank == 0) {
        printf("%d ranks, %d steps, mean square %g\n", ranks, steps, seen[1]);
    }
    hpcdi_finalize();
    return 0;
}
