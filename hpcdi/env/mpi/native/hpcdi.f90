! hpcdi.f90: a parallel MPI program in Fortran as an environment of hpcdi; see hpcdi.h.
!
! Compile this and hpcdi.c with the program. It needs no Fortran module of MPI:
!
!     use hpcdi
!     call hpcdi_init(observations, actions, comm)        ! comm: an integer; type(MPI_Comm)'s MPI_VAL
!     do
!         order = hpcdi_recv_action(action)
!         if (order == HPCDI_END) exit
!         if (order == HPCDI_RESET) then
!             call start(hpcdi_seed(), hpcdi_state())
!         else
!             call advance(action, reward)
!         end if
!         call hpcdi_send_observation(observation, reward, terminated, truncated)
!     end do
!     call hpcdi_finalize()
!
module hpcdi
    use, intrinsic :: iso_c_binding
    implicit none
    private
    public :: hpcdi_init, hpcdi_recv_action, hpcdi_send_observation, hpcdi_send_parts, hpcdi_info
    public :: hpcdi_seed, hpcdi_state, hpcdi_environment, hpcdi_finalize

    integer, parameter, public :: HPCDI_END = 0, HPCDI_STEP = 1, HPCDI_RESET = 2

    interface
        subroutine c_init(observations, actions, comm) bind(C, name="hpcdi_init_fortran")
            import :: c_int
            integer(c_int), value :: observations, actions
            integer(c_int), intent(out) :: comm
        end subroutine

        function c_recv_action(action, n) bind(C, name="hpcdi_recv_action_fortran") result(order)
            import :: c_int, c_double
            real(c_double), intent(inout) :: action(*)
            integer(c_int), value :: n
            integer(c_int) :: order
        end function

        subroutine c_send_observation(observation, n, reward, terminated, truncated) &
                bind(C, name="hpcdi_send_observation")
            import :: c_int, c_double
            real(c_double), intent(in) :: observation(*)
            integer(c_int), value :: n, terminated, truncated
            real(c_double), value :: reward
        end subroutine

        subroutine c_send_parts(part, n, reward, terminated, truncated) &
                bind(C, name="hpcdi_send_parts")
            import :: c_int, c_double
            real(c_double), intent(in) :: part(*)
            integer(c_int), value :: n, terminated, truncated
            real(c_double), value :: reward
        end subroutine

        subroutine c_info(name, value) bind(C, name="hpcdi_info")
            import :: c_char, c_double
            character(kind=c_char), intent(in) :: name(*)
            real(c_double), value :: value
        end subroutine

        function c_state() bind(C, name="hpcdi_state") result(path)
            import :: c_ptr
            type(c_ptr) :: path
        end function

        function c_length(text) bind(C, name="strlen") result(length)
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function

        ! The seed of the last reset, from 0.
        function hpcdi_seed() bind(C, name="hpcdi_seed") result(seed)
            import :: c_int64_t
            integer(c_int64_t) :: seed
        end function

        ! Number of this environment in the job, from 0.
        function hpcdi_environment() bind(C, name="hpcdi_environment") result(number)
            import :: c_int
            integer(c_int) :: number
        end function

        ! Wait until hpcdi needs no answer any more; call MPI_Finalize after it.
        subroutine hpcdi_finalize() bind(C, name="hpcdi_finalize")
        end subroutine
    end interface

contains

    ! Join hpcdi: call MPI_Init before. `comm` becomes a communicator of this solver's ranks alone.
    subroutine hpcdi_init(observations, actions, comm)
        integer, intent(in) :: observations, actions
        integer, intent(out) :: comm
        integer(c_int) :: made
        call c_init(int(observations, c_int), int(actions, c_int), made)
        comm = made
    end subroutine

    ! Wait, all ranks, for HPCDI_STEP, with the action on all ranks, HPCDI_RESET or HPCDI_END.
    function hpcdi_recv_action(action) result(order)
        real(c_double), intent(inout) :: action(:)
        integer :: order
        real(c_double) :: held(size(action))
        held = action
        order = c_recv_action(held, int(size(held), c_int))
        if (order == HPCDI_STEP) action = held
    end function

    ! Answer an order: rank 0's observation is sent.
    subroutine hpcdi_send_observation(observation, reward, terminated, truncated)
        real(c_double), intent(in) :: observation(:), reward
        logical, intent(in) :: terminated, truncated
        call c_send_observation(observation, int(size(observation), c_int), reward, &
                                merge(1_c_int, 0_c_int, terminated), &
                                merge(1_c_int, 0_c_int, truncated))
    end subroutine

    ! Answer an order by every rank's part of the observation and of the reward, in order of ranks.
    subroutine hpcdi_send_parts(part, reward, terminated, truncated)
        real(c_double), intent(in) :: part(:), reward
        logical, intent(in) :: terminated, truncated
        call c_send_parts(part, int(size(part), c_int), reward, &
                          merge(1_c_int, 0_c_int, terminated), &
                          merge(1_c_int, 0_c_int, truncated))
    end subroutine

    ! A number for curves; goes with the next observation of rank 0.
    subroutine hpcdi_info(name, value)
        character(*), intent(in) :: name
        real(c_double), intent(in) :: value
        call c_info(name // c_null_char, value)
    end subroutine

    ! Path of the initial state's file of the last reset; empty: there is none.
    function hpcdi_state() result(path)
        character(:), allocatable :: path
        character(kind=c_char), pointer :: bytes(:)
        type(c_ptr) :: found
        integer :: at, length
        found = c_state()
        length = int(c_length(found))
        call c_f_pointer(found, bytes, [max(length, 1)])
        allocate (character(length) :: path)
        do at = 1, length
            path(at:at) = bytes(at)
        end do
    end function
end module
