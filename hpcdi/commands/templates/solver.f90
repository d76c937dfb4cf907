! NAME: an environment on several MPI ranks to begin from; guide: hpcdi/env/MPI.md.
!
! A rod: each rank has a part of it. Observation: mean and mean square. Action: a heater.
program solver
    use, intrinsic :: iso_fortran_env, only: dp => real64
    use mpi_f08
    use hpcdi
    implicit none

    integer, parameter :: POINTS = 16, OBSERVATIONS = 2, ACTIONS = 1
    type(MPI_Comm) :: comm ! of this environment's ranks; nobody uses MPI_COMM_WORLD
    integer :: order, rank, ranks, i, steps = 0
    real(dp) :: heat(0:POINTS + 1) = 0, action(ACTIONS) = 0, own(OBSERVATIONS), seen(OBSERVATIONS)

    call MPI_Init()
    call hpcdi_init(OBSERVATIONS, ACTIONS, comm%MPI_VAL)
    call MPI_Comm_rank(comm, rank)
    call MPI_Comm_size(comm, ranks)
    do
        order = hpcdi_recv_action(action)
        if (order == HPCDI_END) exit
        if (order == HPCDI_RESET) then
            heat = [(sin(real(mod(hpcdi_seed(), 1000) + rank * POINTS + i, dp)), i = 0, POINTS + 1)]
            steps = 0
        else
            call MPI_Sendrecv(heat(POINTS), 1, MPI_DOUBLE_PRECISION, modulo(rank + 1, ranks), 0, &
                              heat(0), 1, MPI_DOUBLE_PRECISION, modulo(rank - 1, ranks), 0, &
                              comm, MPI_STATUS_IGNORE)
            heat(POINTS + 1) = heat(POINTS)
            heat(1:POINTS) = heat(1:POINTS) + 0.2_dp * action(1) &
                + 0.25_dp * (heat(0:POINTS - 1) - 2 * heat(1:POINTS) + heat(2:POINTS + 1))
            steps = steps + 1
        end if
        own = [sum(heat(1:POINTS)), sum(heat(1:POINTS)**2)] / (POINTS * ranks)
        call MPI_Allreduce(own, seen, 2, MPI_DOUBLE_PRECISION, MPI_SUM, comm)
        call hpcdi_info("mean", seen(1))
        call hpcdi_send_observation(seen, -seen(2), .false., steps == 50)
    end do
    if (rank == 0) then
        print '(i0, a, i0, a, g0.6)', ranks, " ranks, ", steps, " steps, mean square ", seen(2)
    end if
    call hpcdi_finalize()
    call MPI_Finalize()
end program
