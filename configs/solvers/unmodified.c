/* A parallel program that knows nothing of hpcdi and says MPI_COMM_WORLD everywhere.
 *
 * A heat equation on a ring, by as many of MPI's ways as fit into it: a Cartesian communicator,
 * duplicates, splits and groups, persistent requests, halos by Sendrecv, Put, MPI-IO, attributes,
 * reductions, a scan. It writes the field to field.bin in its working folder and prints a line that
 * begins with "result".
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 64, STEPS = 400 };

static int freed; /* attributes that were deleted */

static int count_deleted(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    freed++;
    return MPI_SUCCESS;
}

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "unmodified: %s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

/* Attributes and groups of the world, which must all be those of a world of this size. */
static void look_around(int rank, int ranks)
{
    int flag, key, *bound, equal, own;
    char name[MPI_MAX_OBJECT_NAME];
    MPI_Comm copy, half;
    MPI_Group world, even;
    MPI_Comm_get_name(MPI_COMM_WORLD, name, &flag);
    check(strcmp(name, "MPI_COMM_WORLD") == 0, "the world's name");
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &flag);
    check(flag && *bound >= 32767, "the largest tag");
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, count_deleted, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_WORLD, key, &key);
    void *found;
    MPI_Comm_get_attr(MPI_COMM_WORLD, key, &found, &flag);
    check(flag && found == &key, "an attribute of its own");
    MPI_Comm_delete_attr(MPI_COMM_WORLD, key);
    check(freed == 1, "deleting an attribute");
    MPI_Comm_free_keyval(&key);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm_compare(MPI_COMM_WORLD, copy, &equal);
    check(equal == MPI_CONGRUENT, "a duplicate of the world");
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_size(half, &own);
    check(own == (ranks + 1 - rank % 2) / 2, "a half of the world");
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_size(world, &own);
    check(own == ranks, "the world's group");
    int first = 0, last = ranks - 1, chosen[1][3] = {{first, last, 2}};
    MPI_Group_range_incl(world, 1, chosen, &even);
    MPI_Group_rank(even, &own);
    check(own == (rank % 2 ? MPI_UNDEFINED : rank / 2), "a range of a group");
    MPI_Group_free(&even);
    MPI_Group_free(&world);
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
}

int main(int argc, char **argv)
{
    int rank, ranks, left, right, period = 1, key_rank, seen;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    look_around(rank, ranks);

    MPI_Comm ring;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &period, 0, &ring);
    MPI_Cart_shift(ring, 0, 1, &left, &right);
    MPI_Comm_rank(ring, &key_rank);
    double u[POINTS + 2], next[POINTS + 2], halo[2];
    for (int i = 1; i <= POINTS; i++) {
        double x = (double)(key_rank * POINTS + i) / (ranks * POINTS);
        u[i] = sin(6.283185307179586 * x) + 0.5 * cos(25.13 * x);
    }
    MPI_Request persistent[4];
    MPI_Send_init(&u[1], 1, MPI_DOUBLE, left, 1, ring, &persistent[0]);
    MPI_Send_init(&u[POINTS], 1, MPI_DOUBLE, right, 2, ring, &persistent[1]);
    MPI_Recv_init(&u[POINTS + 1], 1, MPI_DOUBLE, right, 1, ring, &persistent[2]);
    MPI_Recv_init(&u[0], 1, MPI_DOUBLE, left, 2, ring, &persistent[3]);
    MPI_Win window;
    MPI_Win_create(halo, sizeof halo, sizeof(double), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    double total = 0, scan = 0;
    for (int step = 0; step < STEPS; step++) {
        if (step % 3 == 0) {
            MPI_Startall(4, persistent);
            MPI_Waitall(4, persistent, MPI_STATUSES_IGNORE);
        } else if (step % 3 == 1) {
            int before = (rank + ranks - 1) % ranks, after = (rank + 1) % ranks;
            MPI_Sendrecv(&u[1], 1, MPI_DOUBLE, before, 3, &u[POINTS + 1], 1, MPI_DOUBLE, after, 3,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Sendrecv(&u[POINTS], 1, MPI_DOUBLE, after, 4, &u[0], 1, MPI_DOUBLE, before, 4,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Win_fence(0, window);
            MPI_Put(&u[1], 1, MPI_DOUBLE, (rank + ranks - 1) % ranks, 1, 1, MPI_DOUBLE, window);
            MPI_Put(&u[POINTS], 1, MPI_DOUBLE, (rank + 1) % ranks, 0, 1, MPI_DOUBLE, window);
            MPI_Win_fence(0, window);
            u[0] = halo[0];
            u[POINTS + 1] = halo[1];
        }
        for (int i = 1; i <= POINTS; i++) {
            next[i] = u[i] + 0.2 * (u[i - 1] - 2 * u[i] + u[i + 1]);
        }
        memcpy(&u[1], &next[1], POINTS * sizeof(double));
        double own = 0, all;
        for (int i = 1; i <= POINTS; i++) {
            own += u[i] * u[i];
        }
        MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        total += all;
    }
    MPI_Scan(&total, &scan, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Bcast(&scan, 1, MPI_DOUBLE, ranks - 1, MPI_COMM_WORLD);
    MPI_File file;
    MPI_File_open(MPI_COMM_WORLD, "field.bin", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL,
                  &file);
    MPI_File_write_at_all(file, (MPI_Offset)(sizeof(double) * (size_t)(POINTS * rank)), &u[1],
                          POINTS, MPI_DOUBLE, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    for (int i = 0; i < 4; i++) {
        MPI_Request_free(&persistent[i]);
    }
    MPI_Win_free(&window);
    MPI_Comm_free(&ring);
    if (rank == 0) {
        printf("result %d ranks %.17g %.17g\n", ranks, total, scan);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    MPI_Finalized(&seen);
    return seen ? 0 : 1;
}
