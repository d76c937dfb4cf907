/* mpi_env_glue.c: the calls of hpcdi.h as other frameworks couple solvers, for bench_mpi_env.py.
 *
 * Rank 0 takes orders and answers from a socket (HPCDI_GLUE=host:port) or from files in a folder
 * (HPCDI_GLUE=/folder), which are written aside and renamed, and looked for each millisecond. What
 * it was told goes to the other ranks by a broadcast. An order is one letter and the action, an
 * answer the observation and the reward: numbers in double precision. */
#include "hpcdi.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LONGEST = 64 };

static MPI_Comm world;
static int rank, actions, link_fd = -1, orders;
static const char *folder;

static void fail(const char *what)
{
    perror(what);
    abort();
}

static void whole(ssize_t done, size_t wanted, const char *what)
{
    if (done != (ssize_t)wanted) {
        fail(what);
    }
}

void hpcdi_init(int observations, int action_numbers, MPI_Comm *comm)
{
    (void)observations;
    actions = action_numbers;
    MPI_Init(NULL, NULL);
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    MPI_Comm_rank(world, &rank);
    *comm = world;
    folder = getenv("HPCDI_GLUE");
    if (folder[0] != '/' && rank == 0) {
        struct sockaddr_in to = {.sin_family = AF_INET};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons((unsigned short)atoi(strchr(folder, ':') + 1));
        int at_once = 1;
        link_fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(link_fd, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once);
        if (connect(link_fd, (struct sockaddr *)&to, sizeof to) != 0) {
            fail("connect");
        }
    }
}

/* Wait for a file, read it, and remove it. */
static void take_file(const char *path, double *numbers, int count)
{
    FILE *file;
    while ((file = fopen(path, "rb")) == NULL) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    whole(fread(numbers, sizeof *numbers, count, file), count, path);
    fclose(file);
    unlink(path);
}

int hpcdi_recv_action(double *action)
{
    double told[LONGEST]; /* the order, then the action */
    if (rank == 0 && link_fd >= 0) {
        size_t size = sizeof *told * (1 + actions);
        whole(recv(link_fd, told, size, MSG_WAITALL), size, "recv");
    } else if (rank == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/order%d", folder, orders++);
        take_file(path, told, 1 + actions);
    }
    MPI_Bcast(told, 1 + actions, MPI_DOUBLE, 0, world);
    memcpy(action, told + 1, sizeof *told * actions);
    return (int)told[0];
}

void hpcdi_send_observation(const double *observation, int n, double reward, int terminated,
                            int truncated)
{
    double answer[LONGEST];
    (void)terminated;
    (void)truncated;
    if (rank != 0) {
        return;
    }
    memcpy(answer, observation, sizeof *answer * n);
    answer[n] = reward;
    size_t size = sizeof *answer * (n + 1);
    if (link_fd >= 0) {
        whole(send(link_fd, answer, size, 0), size, "send");
        return;
    }
    char aside[4096], path[4096];
    snprintf(aside, sizeof aside, "%s/writing", folder);
    snprintf(path, sizeof path, "%s/answer%d", folder, orders - 1);
    FILE *file = fopen(aside, "wb");
    if (file == NULL || fwrite(answer, 1, size, file) != size || fclose(file) != 0 ||
        rename(aside, path) != 0) {
        fail(path);
    }
}

void hpcdi_info(const char *name, double value)
{
    (void)name;
    (void)value;
}

int64_t hpcdi_seed(void)
{
    return 0;
}

void hpcdi_finalize(void)
{
    MPI_Finalize();
}
