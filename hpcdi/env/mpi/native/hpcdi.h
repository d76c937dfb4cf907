/* hpcdi.h: a parallel MPI program as an environment of hpcdi.
 *
 * The program is compiled with hpcdi.c; neither needs any library but MPI. In its time loop:
 *
 *     MPI_Comm comm;
 *     hpcdi_init(OBSERVATIONS, ACTIONS, &comm);               // comm: its own world
 *     while ((order = hpcdi_recv_action(action)) != HPCDI_END) {
 *         if (order == HPCDI_RESET)
 *             start(hpcdi_seed(), hpcdi_state());
 *         else
 *             reward = advance(action);
 *         hpcdi_send_observation(observation, OBSERVATIONS, reward, terminated, truncated);
 *     }
 *     hpcdi_finalize();
 *
 * All ranks of the group call hpcdi_init, hpcdi_recv_action and hpcdi_finalize; nobody uses
 * MPI_COMM_WORLD, which has hpcdi's ranks and other solvers in it, too. An order is answered by one
 * observation. Every error ends the process by SIGKILL, after a line on standard error: then hpcdi
 * sees its death, whatever it was doing.
 *
 * Started without hpcdi, the program is alone: comm is a copy of MPI_COMM_WORLD, and the orders are
 * one reset, then HPCDI_ALONE_STEPS (an environment variable, default 100) steps with actions of 0,
 * then the end. So it is debugged and timed, and that is the reference without control.
 */
#ifndef HPCDI_H
#define HPCDI_H

#include <mpi.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What hpcdi_recv_action returns. */
enum { HPCDI_END = 0, HPCDI_STEP = 1, HPCDI_RESET = 2 };

/* Join hpcdi; starts MPI where the program has not. Waits until the collector has time for it.
 *
 *   observations, actions: numbers in an observation and in an action; discrete actions are numbers
 *                          from 0. They must be those of the experiment's configuration.
 *   comm: becomes a communicator of this solver's ranks alone; the program owns it. */
void hpcdi_init(int observations, int actions, MPI_Comm *comm);

/* Wait, all ranks, for the next order, with little use of the core. Returns HPCDI_STEP, with the
 * action written on all ranks; HPCDI_RESET; or HPCDI_END. */
int hpcdi_recv_action(double *action);

/* Answer an order. Rank 0's is sent; other ranks may call it, and need not.
 *
 *   observation: of n numbers, as hpcdi_init was told; copied. After the reset the first one.
 *   reward: of the step; without meaning after a reset.
 *   terminated: the task has ended. truncated: the episode was cut, e.g. by its length. */
void hpcdi_send_observation(const double *observation, int n, double reward, int terminated,
                            int truncated);

/* The same, assembled from all ranks, which must all call it: the observation is every rank's part,
 * in the order of ranks, and the reward the sum of theirs; an episode ends where one rank says so. */
void hpcdi_send_parts(const double *part, int n, double reward, int terminated, int truncated);

/* A number for curves, such as "drag"; goes with the next observation of rank 0. Other ranks' calls
 * do nothing. */
void hpcdi_info(const char *name, double value);

/* Of the last reset: its seed, from 0; and the path of the initial state's file, "" for none. */
int64_t hpcdi_seed(void);
const char *hpcdi_state(void);

/* Number of this environment in the job, from 0. */
int hpcdi_environment(void);

/* Leave: waits until hpcdi needs no answer any more, then ends MPI, if hpcdi_init has started it.
 * A program that has called MPI_Init itself calls MPI_Finalize after this. */
void hpcdi_finalize(void);

#ifdef __cplusplus
}
#endif
#endif
