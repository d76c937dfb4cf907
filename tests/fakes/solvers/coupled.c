/* A program that knows nothing of hpcdi and couples itself to a controller, the world's rank 0.
 *
 * Its ranks are those of another application number. The controller sends its rank 0 an int with
 * tag 1: 0 ends, 5 begins anew, 3 announces two doubles with tag 3; it answers with two doubles,
 * tag 4: the sum of all actions, and its ranks. */
#include <mpi.h>

int main(int argc, char **argv)
{
    int *number, flag, own, size, code = 5;
    double sum = 0, action[2], part, seen[2];
    MPI_Comm mine;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &flag);
    MPI_Comm_rank(MPI_COMM_WORLD, &own);
    if (!flag || *number != 1 || own == 0) {
        MPI_Abort(MPI_COMM_WORLD, 7);
    }
    MPI_Group world, others;
    int controller = 0;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_excl(world, 1, &controller, &others);
    MPI_Comm_create_group(MPI_COMM_WORLD, others, 0, &mine);
    MPI_Comm_rank(mine, &own);
    MPI_Comm_size(mine, &size);
    for (;;) {
        if (own == 0) {
            MPI_Recv(&code, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        MPI_Bcast(&code, 1, MPI_INT, 0, mine);
        if (code == 0) {
            break;
        }
        if (code == 5) {
            sum = 0;
        } else {
            if (own == 0) {
                MPI_Recv(action, 2, MPI_DOUBLE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            MPI_Bcast(action, 2, MPI_DOUBLE, 0, mine);
            part = (action[0] + action[1]) / size;
            MPI_Allreduce(MPI_IN_PLACE, &part, 1, MPI_DOUBLE, MPI_SUM, mine);
            sum += part;
        }
        if (own == 0) {
            seen[0] = sum;
            seen[1] = size;
            MPI_Ssend(seen, 2, MPI_DOUBLE, 0, 4, MPI_COMM_WORLD);
        }
    }
    MPI_Finalize();
    return 0;
}
