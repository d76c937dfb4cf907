! The Kuramoto-Sivashinsky equation of kuramoto.c, in Fortran: the same numbers but for rounding.
!
! It needs a Fortran compiler of the job's MPI library, which its wheels do not bring. What makes it
! an environment of hpcdi are the lines with hpcdi_.
program kuramoto
    use, intrinsic :: iso_fortran_env, only: dp => real64, int64, error_unit
    use mpi_f08
    use hpcdi
    implicit none

    integer, parameter :: N_POINTS = 32, JETS = 8, HALO = 8
    integer, parameter :: STEPS_PER_ACTION = 10, STEPS_PER_EPISODE = 200, WARM_UP = 1000
    real(dp), parameter :: LENGTH = 22, DT = 0.025_dp, WIDTH = 0.8_dp, H = LENGTH / N_POINTS
    real(dp), parameter :: TWO_PI = 6.283185307179586_dp

    type(MPI_Comm) :: comm
    integer :: rank, ranks, points, left, right, order, steps = 0, jet, count, at
    real(dp), allocatable :: u(:), force(:)
    real(dp) :: action(JETS) = 0, seen(JETS), rms = 0, reward = 0, total = 0, own, all

    call MPI_Init()
    call hpcdi_init(JETS, JETS, comm%MPI_VAL)
    call MPI_Comm_rank(comm, rank)
    call MPI_Comm_size(comm, ranks)
    points = N_POINTS / ranks
    if (points * ranks /= N_POINTS .or. points < HALO) then
        write (error_unit, *) "kuramoto:", ranks, "ranks do not divide", N_POINTS, "points"
        error stop
    end if
    left = modulo(rank - 1, ranks)
    right = modulo(rank + 1, ranks)
    allocate (u(1 - HALO:points + HALO), force(1 - HALO:points + HALO), source=0.0_dp)

    do
        order = hpcdi_recv_action(action)
        if (order == HPCDI_END) exit
        if (order == HPCDI_RESET) then
            call start(hpcdi_seed(), hpcdi_state())
            steps = 0
        else
            action = min(1.0_dp, max(-1.0_dp, action))
            call force_of(action)
            call advance(STEPS_PER_ACTION)
            own = sum(u(1:points)**2)
            call MPI_Allreduce(own, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, comm)
            rms = sqrt(all / N_POINTS)
            reward = -rms - 0.01_dp * sum(action**2) / JETS
            total = total + reward
            steps = steps + 1
        end if
        count = 0 ! of the jets that lie in this rank's part
        do jet = 0, JETS - 1
            at = jet * N_POINTS / JETS - rank * points
            if (at >= 0 .and. at < points) then
                count = count + 1
                seen(count) = u(at + 1)
            end if
        end do
        call hpcdi_info("rms", rms)
        call hpcdi_send_parts(seen(:count), merge(reward, 0.0_dp, rank == 0), .false., &
                              steps == STEPS_PER_EPISODE)
    end do
    if (rank == 0) print '(a, i0, a, f0.6)', "kuramoto: ", ranks, " ranks, sum of rewards ", total
    call hpcdi_finalize()
    call MPI_Finalize()

contains

    ! The neighbours' points, before and behind this rank's own.
    subroutine exchange()
        call MPI_Sendrecv(u(1), HALO, MPI_DOUBLE_PRECISION, left, 0, u(points + 1), HALO, &
                          MPI_DOUBLE_PRECISION, right, 0, comm, MPI_STATUS_IGNORE)
        call MPI_Sendrecv(u(points - HALO + 1), HALO, MPI_DOUBLE_PRECISION, right, 1, &
                          u(1 - HALO), HALO, MPI_DOUBLE_PRECISION, left, 1, comm, MPI_STATUS_IGNORE)
    end subroutine

    pure function slope(v, i) result(k)
        real(dp), intent(in) :: v(1 - HALO:)
        integer, intent(in) :: i
        real(dp) :: k
        k = (v(i - 1)**2 - v(i + 1)**2) / (4 * H) - (v(i + 1) - 2 * v(i) + v(i - 1)) / H**2 &
            - (v(i + 2) - 4 * v(i + 1) + 6 * v(i) - 4 * v(i - 1) + v(i - 2)) / H**4
    end function

    ! One exchange a step: each stage computes two points less of the halo than the one before.
    subroutine advance(steps)
        integer, intent(in) :: steps
        real(dp), parameter :: PART(4) = [0.0_dp, 0.5_dp, 0.5_dp, 1.0_dp]
        real(dp), parameter :: WEIGHT(4) = [1, 2, 2, 1]
        real(dp), dimension(1 - HALO:points + HALO) :: k, mid, sums
        integer :: step, stage, i, first, last
        k = 0
        do step = 1, steps
            call exchange()
            sums = 0
            do stage = 1, 4
                first = 1 - HALO + 2 * (stage - 1)
                last = points + HALO - 2 * (stage - 1)
                mid(first:last) = u(first:last) + DT * PART(stage) * k(first:last)
                do i = first + 2, last - 2
                    k(i) = slope(mid, i) + force(i)
                    sums(i) = sums(i) + WEIGHT(stage) * k(i)
                end do
            end do
            u(1:points) = u(1:points) + DT / 6 * sums(1:points)
        end do
    end subroutine

    subroutine force_of(action)
        real(dp), intent(in) :: action(0:)
        real(dp) :: x, apart
        integer :: i, jet
        do i = 1 - HALO, points + HALO
            x = LENGTH * modulo(rank * points + i - 1, N_POINTS) / N_POINTS
            force(i) = 0
            do jet = 0, JETS - 1
                apart = abs(x - LENGTH * jet / JETS)
                apart = min(apart, LENGTH - apart)
                force(i) = force(i) + action(jet) * exp(-apart**2 / (2 * WIDTH**2))
            end do
        end do
    end subroutine

    ! A number in [-1, 1) that hangs on the seed and a counter alone.
    pure function drawn(seed, number) result(x)
        integer(int64), intent(in) :: seed
        integer, intent(in) :: number
        real(dp) :: x
        x = 43758.5453_dp * abs(sin(12.9898_dp * mod(seed, 1000003_int64) + 78.233_dp * number))
        x = 2 * (x - floor(x)) - 1
    end function

    subroutine start(seed, path)
        integer(int64), intent(in) :: seed
        character(*), intent(in) :: path
        real(dp) :: whole(N_POINTS), x
        integer :: i, mode, unit
        if (len(path) > 0) then
            open (newunit=unit, file=path, access="stream", status="old", action="read")
            read (unit) whole
            close (unit)
            u(1:points) = whole(rank * points + 1:(rank + 1) * points)
            return
        end if
        do i = 1, points
            x = TWO_PI * (rank * points + i - 1) / N_POINTS
            u(i) = 0
            do mode = 1, 4
                u(i) = u(i) + drawn(seed, 2 * mode) * sin(mode * x)
                u(i) = u(i) + drawn(seed, 2 * mode + 1) * cos(mode * x)
            end do
        end do
        force = 0
        call advance(WARM_UP)
    end subroutine
end program
