/* The Kuramoto-Sivashinsky equation on a ring, on 1, 2 or 4 ranks:
 *
 *     u_t + u u_x + u_xx + u_xxxx = sum_j a_j exp(-(x - x_j)^2 / (2 WIDTH^2)),   x in [0, 22)
 *
 * Chaotic without control (a = 0); eight jets at equal distances have to calm it. Observation: u at
 * the jets. Action: the jets' strengths a_j, cut to [-1, 1]. Reward of a step, which is 0.25 units
 * of time: minus the root mean square of u, less 0.01 of the mean square of a. An episode is cut
 * after 200 steps; it begins on the attractor, at a place that the seed chooses, or with the field
 * in a file of POINTS doubles, as `hpcdi_state` names one. Without control the mean return is about
 * -255. Fourth-order Runge-Kutta, central differences.
 *
 * What makes it an environment of hpcdi are the lines that begin with hpcdi_.
 */
#include "hpcdi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS = 32, JETS = 8, STEPS_PER_ACTION = 10, STEPS_PER_EPISODE = 200, WARM_UP = 1000 };
enum { HALO = 8, ROOM = POINTS + 2 * HALO }; /* two points for each stage of a step */
static const double LENGTH = 22.0, DT = 0.025, WIDTH = 0.8;

static int rank, ranks, points, left, right;
static MPI_Comm comm;

/* The neighbours' points, before and behind this rank's own. */
static void exchange(double *u)
{
    MPI_Sendrecv(&u[HALO], HALO, MPI_DOUBLE, left, 0, &u[points + HALO], HALO, MPI_DOUBLE, right, 0,
                 comm, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&u[points], HALO, MPI_DOUBLE, right, 1, &u[0], HALO, MPI_DOUBLE, left, 1, comm,
                 MPI_STATUS_IGNORE);
}

static double slope(const double *u, int i)
{
    static const double h = LENGTH / POINTS, h2 = h * h;
    double ahead = u[i + 1], behind = u[i - 1];
    return (behind * behind - ahead * ahead) / (4 * h) - (ahead - 2 * u[i] + behind) / h2 -
           (u[i + 2] - 4 * ahead + 6 * u[i] - 4 * behind + u[i - 2]) / (h2 * h2);
}

/* One exchange a step: each stage computes two points less of the halo than the one before. */
static void advance(double *u, const double *force, int steps)
{
    static const double part[4] = {0, 0.5, 0.5, 1}, weight[4] = {1, 2, 2, 1};
    double k[ROOM] = {0}, mid[ROOM], sum[ROOM];
    for (int step = 0; step < steps; step++) {
        exchange(u);
        memset(sum, 0, sizeof sum);
        for (int stage = 0; stage < 4; stage++) {
            int inner = 2 * stage, end = points + 2 * HALO - inner;
            for (int i = inner; i < end; i++) {
                mid[i] = u[i] + DT * part[stage] * k[i];
            }
            for (int i = inner + 2; i < end - 2; i++) {
                k[i] = slope(mid, i) + force[i];
                sum[i] += weight[stage] * k[i];
            }
        }
        for (int i = HALO; i < points + HALO; i++) {
            u[i] += DT / 6 * sum[i];
        }
    }
}

static void force_of(const double *action, double *force)
{
    for (int i = 0; i < points + 2 * HALO; i++) {
        double x = LENGTH * ((rank * points + i - HALO + POINTS) % POINTS) / POINTS;
        force[i] = 0;
        for (int jet = 0; jet < JETS; jet++) {
            double apart = fabs(x - LENGTH * jet / JETS);
            apart = apart < LENGTH / 2 ? apart : LENGTH - apart;
            force[i] += action[jet] * exp(-apart * apart / (2 * WIDTH * WIDTH));
        }
    }
}

/* A number in [-1, 1) that hangs on the seed and a counter alone. */
static double drawn(int64_t seed, int number)
{
    double x = 43758.5453 * fabs(sin(12.9898 * (double)(seed % 1000003) + 78.233 * number));
    return 2 * (x - floor(x)) - 1;
}

static void start(double *u, int64_t seed, const char *path)
{
    double none[ROOM] = {0}, whole[POINTS];
    if (*path != '\0') {
        FILE *file = fopen(path, "rb");
        if (file == NULL || fread(whole, sizeof(double), POINTS, file) != POINTS) {
            fprintf(stderr, "kuramoto: %s has not %d numbers\n", path, POINTS);
            exit(1);
        }
        fclose(file);
        memcpy(&u[HALO], &whole[rank * points], sizeof(double) * (size_t)points);
        return;
    }
    for (int i = 0; i < points; i++) {
        double x = 6.283185307179586 * (rank * points + i) / POINTS;
        u[i + HALO] = 0;
        for (int mode = 1; mode <= 4; mode++) {
            u[i + HALO] += drawn(seed, 2 * mode) * sin(mode * x);
            u[i + HALO] += drawn(seed, 2 * mode + 1) * cos(mode * x);
        }
    }
    advance(u, none, WARM_UP);
}

int main(void)
{
    double u[ROOM] = {0}, force[ROOM], action[JETS] = {0}, seen[JETS];
    double own, all, cost, rms = 0, total = 0, reward = 0;
    int order, steps = 0;
    hpcdi_init(JETS, JETS, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    if (POINTS % ranks != 0 || POINTS / ranks < HALO) {
        fprintf(stderr, "kuramoto: %d ranks do not divide %d points, %d or more each\n", ranks,
                POINTS, HALO);
        return 1;
    }
    points = POINTS / ranks;
    left = (rank + ranks - 1) % ranks;
    right = (rank + 1) % ranks;
    while ((order = hpcdi_recv_action(action)) != HPCDI_END) {
        if (order == HPCDI_RESET) {
            start(u, hpcdi_seed(), hpcdi_state());
            steps = 0;
        } else {
            cost = 0;
            for (int jet = 0; jet < JETS; jet++) {
                action[jet] = fmin(1, fmax(-1, action[jet]));
                cost += 0.01 * action[jet] * action[jet] / JETS;
            }
            force_of(action, force);
            advance(u, force, STEPS_PER_ACTION);
            own = 0;
            for (int i = HALO; i < points + HALO; i++) {
                own += u[i] * u[i];
            }
            MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, comm);
            rms = sqrt(all / POINTS);
            reward = -rms - cost;
            total += reward;
            steps++;
        }
        int count = 0; /* of the jets that lie in this rank's part */
        for (int jet = 0; jet < JETS; jet++) {
            int at = jet * POINTS / JETS - rank * points;
            if (at >= 0 && at < points) {
                seen[count++] = u[at + HALO];
            }
        }
        hpcdi_info("rms", rms);
        hpcdi_send_parts(seen, count, rank == 0 ? reward : 0, 0, steps == STEPS_PER_EPISODE);
    }
    if (rank == 0) {
        printf("kuramoto: %d ranks, sum of rewards %.6f\n", ranks, total);
    }
    hpcdi_finalize();
    return 0;
}
