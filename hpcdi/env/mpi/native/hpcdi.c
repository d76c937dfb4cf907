/* hpcdi.c: the solver's side of hpcdi's protocol; see hpcdi.h.
 *
 * Also compiled into the library that is preloaded for programs which know nothing of hpcdi
 * (preload.c), with HPCDI_PRELOAD defined. hpcdi/comm/solver_protocol.py has the same messages.
 *
 * The life of a rank:
 *
 *     [ASSIGN ->] -> HELLO -> GO -> communicators -> { RESET or STEP -> OBSERVATION } -> BYE -> END
 *     spares only     over MPI_COMM_WORLD            over pair: the collector is its rank 0
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_NEXT */
#endif
#include "hpcdi.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hpcdi_solver.h"

enum { PROTOCOL = 1, MAGIC = 0x53435048 /* "HPCS" */, TEXT_BYTES = 4096 };
enum { ANSWER_TEXT_BYTES = 1 << 20 }; /* of an answer: the numbers of hpcdi_info */
enum { HELLO = 1, GO, RESET, STEP, OBSERVATION, END, BYE, ABANDON, ASSIGN };
enum { WORLD_TAG = 18500, ASSIGN_TAG, ORDER_TAG = 1, ANSWER_TAG };
enum { PROBES = 10 }; /* one is one turn of MPI's progress; a message needs several */
enum { OTHERS_FIRST_NS = 200000000 }; /* for the collector to see the death that MPI fails by */

static const double RUNG_S = 200e-6; /* probes after a bell, which may overtake its message */
static const double PATIENCE_S = 50e-3; /* then naps grow: this is no pause between two steps */
static const int POLL_MS = 5, IDLE_POLL_MS = 20; /* cover lost bells */

typedef struct {
    uint32_t magic;
    uint16_t version, kind;
    int64_t number; /* of the order that this is, or answers */
    int64_t seed;
    double reward;
    uint8_t terminated, truncated, unused[6];
    int64_t values; /* doubles that follow */
    int64_t text;   /* bytes that follow these */
    int64_t unused_too;
} Head;

_Static_assert(sizeof(Head) == 64, "the head of a message has 64 bytes");

typedef struct {
    char *bytes;
    size_t room;
    MPI_Request request;
} Message;

static struct {
    int has_joined, has_left; /* hpcdi's job */
    int has_started_mpi, is_over, is_answered;
    int environment, collector, rank, ranks, observations, actions;
    int alone_steps;
    MPI_Comm pair, group;
    Message order, answer;
    int64_t number, seed;
    pid_t process; /* a fork of it is no rank */
    char state[TEXT_BYTES], *infos;
    size_t infos_size, infos_room;
    int has_dropped;
    double *parts; /* of all ranks, on rank 0 */
    int *part_sizes, *part_starts;
    int bell, collectors_bell; /* descriptors; -1: there is none */
    long rung, received; /* bells heard, and messages that each had one */
    double spin_s, nap_s;
} self = {.bell = -1, .collectors_bell = -1, .is_answered = 1};

/* ----------------------------------------------------------------------------------- ends */

#define EXPORTED __attribute__((visibility("default")))

static int (*real_finalize)(void), (*real_abort)(MPI_Comm, int), (*real_finalized)(int *);

void *hpcdi_real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) { /* this code is in a library that was opened after MPI's */
        found = dlsym(RTLD_DEFAULT, name);
    }
    if (found == NULL) {
        hpcdi_die("the MPI library has no %s", name);
    }
    return found;
}

static int ranks_may_die(void)
{
    const char *enabled = getenv("OMPI_MCA_mpi_ft_enable"); /* by mpirun --with-ft ulfm */
    return enabled != NULL && strcmp(enabled, "1") == 0;
}

/* MPI_Finalize hangs now and then where a rank has died, so that nobody calls it then, and Open
 * MPI's shared memory stays behind. */
static void remove_shared_memory(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096], *path;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        path = strchr(line, '/');
        if (path != NULL && strstr(path, "/sm_segment.") != NULL) {
            unlink(path);
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
}

/* By a signal: a rank that exits, or aborts, is not seen to die by the others. */
void hpcdi_die(const char *format, ...)
{
    char text[1024];
    int length = snprintf(text, sizeof text, "hpcdi: rank %d of environment %d (process %d): ",
                          self.rank, self.environment, (int)getpid());
    va_list given;
    va_start(given, format);
    vsnprintf(text + length, sizeof text - (size_t)length - 1, format, given);
    va_end(given);
    fflush(NULL);
    fprintf(stderr, "%s\n", text);
    fflush(stderr);
    raise(SIGKILL);
    abort(); /* not reached */
}

static void die_of_mpi(MPI_Comm *comm, int *code, ...)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    (void)comm;
    nanosleep(&(struct timespec){.tv_nsec = OTHERS_FIRST_NS}, NULL);
    MPI_Error_string(*code, text, &length);
    hpcdi_die("MPI fails: %s", text);
}

static void die_at_exit(void)
{
    if (!self.has_left && getpid() == self.process) {
        hpcdi_die("the program exits without hpcdi_finalize or MPI_Finalize");
    }
}

EXPORTED int MPI_Finalized(int *flag)
{
    if (real_finalized == NULL) {
        real_finalized = (int (*)(int *))hpcdi_real("PMPI_Finalized");
    }
    int code = real_finalized(flag);
    *flag = *flag || self.has_left;
    return code;
}

EXPORTED int MPI_Abort(MPI_Comm comm, int code)
{
    if (ranks_may_die() && self.has_joined) {
        hpcdi_die("it calls MPI_Abort with code %d", code);
    }
    if (real_abort == NULL) {
        real_abort = (int (*)(MPI_Comm, int))hpcdi_real("PMPI_Abort");
    }
    self.has_left = 1; /* it may call exit() */
    return real_abort(comm, code);
}

static int finalize(void)
{
    if (real_finalize == NULL) {
        real_finalize = (int (*)(void))hpcdi_real("PMPI_Finalize");
    }
    if (ranks_may_die() && self.has_joined) {
        remove_shared_memory();
        return MPI_SUCCESS;
    }
    return real_finalize();
}

EXPORTED int MPI_Finalize(void)
{
    hpcdi_leave();
    return finalize();
}

/* Fortran's bindings call these. */
EXPORTED int PMPI_Finalized(int *flag) __attribute__((alias("MPI_Finalized")));
EXPORTED int PMPI_Abort(MPI_Comm comm, int code) __attribute__((alias("MPI_Abort")));
EXPORTED int PMPI_Finalize(void) __attribute__((alias("MPI_Finalize")));

/* -------------------------------------------------------------------------------- waiting */

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void hear(void)
{
    char bells[64];
    ssize_t count;
    while (self.bell >= 0 && (count = read(self.bell, bells, sizeof bells)) > 0) {
        self.rung += count;
    }
}

static int probe(MPI_Request *request)
{
    int done = 0, is_sent;
    for (int turn = 0; turn < PROBES && !done; turn++) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done) {
            sched_yield(); /* MPICH's progress never does; there may be more ranks than cores */
        }
    }
    if (self.answer.request != MPI_REQUEST_NULL) {
        MPI_Test(&self.answer.request, &is_sent, MPI_STATUS_IGNORE);
    }
    return done;
}

/* Wait for a request: first it spins, then it sleeps until the bell rings, or by naps. */
static void wait_for(MPI_Request *request)
{
    double began = now_s(), spins_until = began + self.spin_s, nap_s = self.nap_s;
    while (!probe(request)) {
        double now = now_s();
        if (now < spins_until) {
            continue;
        }
        /* a large answer that is on its way needs more turns of MPI's progress */
        if (self.bell >= 0 && self.answer.request == MPI_REQUEST_NULL) {
            struct pollfd bell = {.fd = self.bell, .events = POLLIN};
            poll(&bell, 1, now - began < 1.0 ? POLL_MS : IDLE_POLL_MS);
            hear();
            if (self.rung > self.received) { /* else it was that of a message seen before it */
                spins_until = now_s() + RUNG_S;
            }
            continue;
        }
        struct timespec nap = {.tv_nsec = (long)(1e9 * nap_s)};
        nanosleep(&nap, NULL);
        if (now - began > PATIENCE_S && nap_s < 1e-3) {
            nap_s *= 1.5;
        }
    }
    self.received++;
    hear();
    /* more were not to be expected; fewer: this message's own may be late, others are lost */
    if (self.rung > self.received || self.rung < self.received - 1) {
        self.rung = self.received - (self.rung < self.received);
    }
}

/* ------------------------------------------------------------------------------- messages */

static Head *fill(Message *message, int kind, size_t values, size_t text)
{
    size_t size = sizeof(Head) + 8 * values + text;
    if (message->room < size) {
        free(message->bytes);
        message->bytes = calloc(1, size);
        message->room = size;
        if (message->bytes == NULL) {
            hpcdi_die("there is no memory for a message of %zu bytes", size);
        }
    }
    Head *head = (Head *)message->bytes;
    memset(head, 0, sizeof *head);
    *head = (Head){.magic = MAGIC, .version = PROTOCOL, .kind = (uint16_t)kind};
    head->values = (int64_t)values;
    head->text = (int64_t)text;
    return head;
}

static double *values_of(Message *message)
{
    return (double *)(message->bytes + sizeof(Head));
}

static char *text_of(Message *message)
{
    return message->bytes + sizeof(Head) + 8 * ((Head *)message->bytes)->values;
}

static void send(Message *message, MPI_Comm comm, int rank, int tag)
{
    Head *head = (Head *)message->bytes;
    int size = (int)(sizeof(Head) + 8 * (size_t)head->values + (size_t)head->text);
    MPI_Isend(message->bytes, size, MPI_BYTE, rank, tag, comm, &message->request);
}

static void expect(Message *message, MPI_Comm comm, int rank, int tag, size_t values)
{
    fill(message, 0, values, TEXT_BYTES);
    MPI_Irecv(message->bytes, (int)message->room, MPI_BYTE, rank, tag, comm, &message->request);
}

static Head *receive(Message *message)
{
    wait_for(&message->request);
    Head *head = (Head *)message->bytes;
    if (head->magic != MAGIC || head->version != PROTOCOL) {
        hpcdi_die("hpcdi speaks version %d of its protocol, and this program version %d: compile "
                  "it with the hpcdi.c of the hpcdi that runs it", (int)head->version, PROTOCOL);
    }
    if (head->text >= TEXT_BYTES) {
        hpcdi_die("hpcdi sends a text of %ld bytes, and a message has room for %d",
                  (long)head->text, TEXT_BYTES - 1);
    }
    text_of(message)[head->text] = '\0';
    if (head->kind == ABANDON) {
        hpcdi_die("hpcdi gives this group up: %s", text_of(message));
    }
    return head;
}

/* The value of a line "name=value" of a text, or NULL; valid until the next call. */
static const char *line_of(const char *text, const char *name)
{
    static char value[TEXT_BYTES];
    size_t length = strlen(name);
    while (text != NULL && *text != '\0') {
        if (strncmp(text, name, length) == 0 && text[length] == '=') {
            size_t size = strcspn(text + length + 1, "\n");
            memcpy(value, text + length + 1, size);
            value[size] = '\0';
            return value;
        }
        text = strchr(text, '\n');
        text = text == NULL ? NULL : text + 1;
    }
    return NULL;
}

static int number_of(const char *text, const char *name, int otherwise)
{
    const char *value = line_of(text, name);
    return value == NULL ? otherwise : atoi(value);
}

static void ring(void)
{
    if (self.collectors_bell >= 0 && write(self.collectors_bell, "!", 1) < 0 && errno != EAGAIN) {
        self.collectors_bell = -1; /* the collector is gone, as MPI will say */
    }
}

/* ------------------------------------------------------------------------------ beginning */

static int variable(const char *name, int otherwise)
{
    const char *value = getenv(name);
    return value == NULL || *value == '\0' ? otherwise : atoi(value);
}

/* True if this host has more ranks than cores: who spins takes another's core. */
static int is_crowded(void)
{
    int ranks = variable("OMPI_COMM_WORLD_LOCAL_SIZE", variable("MPI_LOCALNRANKS", 0));
    return ranks > sysconf(_SC_NPROCESSORS_ONLN);
}

/* Ranks "3-5,8", after the collector; returns how many they are with it. */
static int members_of(const char *text, int collector, int **members)
{
    int count = 1, first, last, length;
    *members = malloc(sizeof(int));
    (*members)[0] = collector;
    while (text != NULL && sscanf(text, "%d%n", &first, &length) == 1) {
        text += length;
        last = first;
        if (sscanf(text, "-%d%n", &last, &length) == 1) {
            text += length;
        }
        *members = realloc(*members, sizeof(int) * (size_t)(count + last - first + 1));
        for (int rank = first; rank <= last; rank++) {
            (*members)[count++] = rank;
        }
        text += *text == ',';
    }
    return count;
}

/* A pipe that the collector opens by the name that Linux's /proc has for it: nothing of it can be
 * left behind. */
static void make_bell(void)
{
    int ends[2];
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0) {
        self.bell = ends[0]; /* the other end stays open, so that poll() never sees it closed */
    }
}

static unsigned long inode_of(int descriptor)
{
    struct stat state;
    return fstat(descriptor, &state) == 0 ? (unsigned long)state.st_ino : 0;
}

static void open_bell(const char *path, unsigned long inode)
{
    self.collectors_bell = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (self.collectors_bell >= 0 && inode_of(self.collectors_bell) != inode) {
        close(self.collectors_bell); /* of another container's process of that number */
        self.collectors_bell = -1;
    }
}

static MPI_Comm communicator(const int *members, int count, int tag, int from_group)
{
    typedef int CreateFromGroup(MPI_Group, const char *, MPI_Info, MPI_Errhandler, MPI_Comm *);
    MPI_Group world, group;
    MPI_Comm made;
    char name[64];
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, count, members, &group);
    if (from_group) { /* create_group fails for ever after a death in the world */
        CreateFromGroup *create = (CreateFromGroup *)hpcdi_real("PMPI_Comm_create_from_group");
        snprintf(name, sizeof name, "hpcdi:%d:%d", tag, members[count - 1]);
        create(group, name, MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &made);
    } else {
        MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &made);
    }
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return made;
}

/* Wait for the word that this rank is needed; where it says the contrary, the program ends here. */
static void await(int rank, int tag)
{
    expect(&self.order, MPI_COMM_WORLD, rank, tag, 0);
    if (receive(&self.order)->kind == END) {
        self.has_left = 1;
        finalize();
        exit(0);
    }
}

static void await_assignment(int assigner, char *members, size_t room)
{
    await(assigner, ASSIGN_TAG);
    self.collector = number_of(text_of(&self.order), "collector", -1);
    self.environment = number_of(text_of(&self.order), "environment", -1);
    snprintf(members, room, "%s", line_of(text_of(&self.order), "ranks"));
}

static void say_hello(int observations, int actions)
{
    char text[1024], host[256] = "";
    gethostname(host, sizeof host - 1);
    int length = snprintf(text, sizeof text,
                          "pid=%d\nhost=%s\nbell=/proc/%d/fd/%d\ninode=%lu\nobservations=%d\n"
                          "actions=%d\n", (int)getpid(), host, (int)getpid(), self.bell,
                          inode_of(self.bell), observations, actions);
    fill(&self.answer, HELLO, 0, (size_t)length);
    memcpy(text_of(&self.answer), text, (size_t)length);
    send(&self.answer, MPI_COMM_WORLD, self.collector, WORLD_TAG);
}

static void check_size(const char *text, const char *name, int own)
{
    int wanted = number_of(text, name, own);
    if (own >= 0 && wanted >= 0 && wanted != own) {
        hpcdi_die("this program has %d %s, and the experiment's configuration says %d", own, name,
                  wanted);
    }
}

/* Signals to all processes of a job: the collector ends a solver. Its own handlers stay. */
static void ignore_signals(void)
{
    const int sent_to_all[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    for (size_t k = 0; k < sizeof sent_to_all / sizeof *sent_to_all; k++) {
        struct sigaction now;
        if (sigaction(sent_to_all[k], NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
            signal(sent_to_all[k], SIG_IGN);
        }
    }
}

/* Make the communicators with the collector, which says when. */
int hpcdi_connect(int observations, int actions)
{
    char members[TEXT_BYTES];
    const char *ranks = getenv("HPCDI_SOLVER_RANKS");
    if (ranks == NULL) {
        return 0;
    }
    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(die_of_mpi, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    self.has_joined = 1;
    self.process = getpid();
    atexit(die_at_exit);
    ignore_signals();
    snprintf(members, sizeof members, "%s", ranks);
    self.collector = variable("HPCDI_SOLVER_COLLECTOR", 0);
    self.environment = variable("HPCDI_SOLVER_ENVIRONMENT", 0);
    self.spin_s = 1e-6 * variable("HPCDI_SOLVER_SPIN_US", is_crowded() ? 0 : 50);
    self.nap_s = 1e-6 * variable("HPCDI_SOLVER_NAP_US", 50);
    self.order.request = self.answer.request = MPI_REQUEST_NULL;
    make_bell();
    int assigner = variable("HPCDI_SOLVER_ASSIGNER", -1);
    if (assigner >= 0) {
        await_assignment(assigner, members, sizeof members);
    }
    say_hello(observations, actions);
    await(self.collector, WORLD_TAG);
    const char *go = text_of(&self.order);
    check_size(go, "observations", observations);
    check_size(go, "actions", actions);
    if (!number_of(go, "rings", 0) && self.bell >= 0) {
        close(self.bell);
        self.bell = -1;
    }
    const char *inode = line_of(go, "inode");
    if (inode != NULL) {
        unsigned long number = strtoul(inode, NULL, 10);
        open_bell(line_of(go, "bell"), number);
    }
    int *ranks_of_pair, count = members_of(members, self.collector, &ranks_of_pair);
    int from_group = number_of(go, "from_group", 0);
    self.pair = communicator(ranks_of_pair, count, 2 * self.environment + 1, from_group);
    self.group = communicator(ranks_of_pair + 1, count - 1, 2 * self.environment + 2, from_group);
    free(ranks_of_pair);
    MPI_Comm_set_errhandler(self.pair, handler);
    MPI_Comm_set_errhandler(self.group, handler);
    MPI_Errhandler_free(&handler);
    MPI_Comm_rank(self.group, &self.rank);
    MPI_Comm_size(self.group, &self.ranks);
    expect(&self.order, self.pair, 0, ORDER_TAG, actions < 0 ? 0 : (size_t)actions);
    return 1;
}

MPI_Comm hpcdi_group(void)
{
    return self.group;
}

MPI_Comm hpcdi_pair(void)
{
    return self.pair;
}

/* -------------------------------------------------------------------------- the five lines */

void hpcdi_init(int observations, int actions, MPI_Comm *comm)
{
    int is_running;
    if (self.ranks > 0) {
        hpcdi_die("hpcdi_init is called again");
    }
    MPI_Initialized(&is_running);
    if (!is_running) {
        MPI_Init(NULL, NULL);
        self.has_started_mpi = 1;
    }
    self.observations = observations;
    self.actions = actions;
    setvbuf(stdout, NULL, _IOLBF, 0); /* what a killed process has printed is in its log */
    if (!hpcdi_connect(observations, actions)) {
        self.alone_steps = variable("HPCDI_ALONE_STEPS", 100);
        MPI_Comm_dup(MPI_COMM_WORLD, &self.group);
        MPI_Comm_rank(self.group, &self.rank);
        MPI_Comm_size(self.group, &self.ranks);
    }
    *comm = self.group;
}

static int order_alone(double *action)
{
    self.number++;
    memset(action, 0, sizeof(double) * (size_t)self.actions);
    if (self.number == 1) {
        return HPCDI_RESET;
    }
    return self.number <= 1 + self.alone_steps ? HPCDI_STEP : HPCDI_END;
}

int hpcdi_recv_action(double *action)
{
    if (!self.has_joined) {
        return order_alone(action);
    }
    if (self.is_over) {
        return HPCDI_END;
    }
    if (self.rank == 0 && !self.is_answered) {
        hpcdi_die("hpcdi_recv_action is called again, and order %ld has had no observation",
                  (long)self.number);
    }
    Head head = *receive(&self.order);
    self.number = head.number;
    self.is_answered = 0;
    if (head.kind == END) {
        self.is_over = self.is_answered = 1;
        return HPCDI_END;
    }
    if (head.kind == RESET) {
        self.seed = head.seed;
        const char *state = line_of(text_of(&self.order), "state");
        snprintf(self.state, sizeof self.state, "%s", state == NULL ? "" : state);
    } else if (head.values == self.actions) {
        memcpy(action, values_of(&self.order), sizeof(double) * (size_t)self.actions);
    } else {
        hpcdi_die("hpcdi sends an action of %ld numbers, and this program has %d actions",
                  (long)head.values, self.actions);
    }
    expect(&self.order, self.pair, 0, ORDER_TAG, (size_t)self.actions);
    return head.kind == RESET ? HPCDI_RESET : HPCDI_STEP;
}

void hpcdi_send_observation(const double *observation, int n, double reward, int terminated,
                            int truncated)
{
    if (self.rank != 0) {
        return;
    }
    if (n != self.observations) {
        hpcdi_die("hpcdi_send_observation has %d numbers, and hpcdi_init was told of %d", n,
                  self.observations);
    }
    size_t text = self.infos_size;
    self.infos_size = 0;
    if (!self.has_joined) {
        return;
    }
    if (self.is_answered) {
        hpcdi_die("hpcdi_send_observation is called without an order: call hpcdi_recv_action "
                  "before each");
    }
    MPI_Wait(&self.answer.request, MPI_STATUS_IGNORE); /* of the last one: it was received */
    Head *head = fill(&self.answer, OBSERVATION, (size_t)n, text);
    head->number = self.number;
    head->reward = reward;
    head->terminated = terminated != 0;
    head->truncated = truncated != 0;
    memcpy(values_of(&self.answer), observation, sizeof(double) * (size_t)n);
    if (text > 0) {
        memcpy(text_of(&self.answer), self.infos, text);
    }
    send(&self.answer, self.pair, 0, ANSWER_TAG);
    ring();
    self.is_answered = 1;
}

void hpcdi_send_parts(const double *part, int n, double reward, int terminated, int truncated)
{
    double own[3] = {reward, terminated != 0, truncated != 0}, all[3] = {0, 0, 0};
    int total = 0;
    if (self.rank == 0 && self.parts == NULL) {
        self.parts = malloc(sizeof(double) * (size_t)self.observations);
        self.part_sizes = malloc(sizeof(int) * (size_t)self.ranks);
        self.part_starts = malloc(sizeof(int) * (size_t)self.ranks);
    }
    MPI_Gather(&n, 1, MPI_INT, self.part_sizes, 1, MPI_INT, 0, self.group);
    for (int rank = 0; self.rank == 0 && rank < self.ranks; rank++) {
        self.part_starts[rank] = total;
        total += self.part_sizes[rank];
    }
    if (self.rank == 0 && total != self.observations) {
        hpcdi_die("the parts of hpcdi_send_parts have %d numbers together, and hpcdi_init was told "
                  "of %d", total, self.observations);
    }
    MPI_Gatherv(part, n, MPI_DOUBLE, self.parts, self.part_sizes, self.part_starts, MPI_DOUBLE, 0,
                self.group);
    MPI_Reduce(own, all, 3, MPI_DOUBLE, MPI_SUM, 0, self.group);
    if (self.rank == 0) {
        hpcdi_send_observation(self.parts, total, all[0], all[1] > 0, all[2] > 0);
    }
}

void hpcdi_info(const char *name, double value)
{
    static locale_t plain;
    char number[40];
    if (self.rank != 0) {
        return;
    }
    if (plain == (locale_t)0) {
        plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    }
    locale_t programs = uselocale(plain); /* which may write 0,5 */
    int digits = snprintf(number, sizeof number, "=%.17g\n", value);
    uselocale(programs);
    size_t length = strlen(name), size = length + (size_t)digits;
    if (self.infos_size + size >= ANSWER_TEXT_BYTES) {
        if (!self.has_dropped) {
            fprintf(stderr, "hpcdi: hpcdi_info has no room for %s in one observation, and leaves "
                            "it out; there is no more word of such\n", name);
        }
        self.has_dropped = 1;
        return;
    }
    if (self.infos_size + size > self.infos_room) {
        self.infos_room = 2 * (self.infos_size + size);
        self.infos = realloc(self.infos, self.infos_room);
        if (self.infos == NULL) {
            hpcdi_die("there is no memory for an info of %zu bytes", self.infos_room);
        }
    }
    char *line = self.infos + self.infos_size;
    memcpy(line, name, length);
    for (char *end = line; (end = memchr(end, '\n', (size_t)(line + length - end))) != NULL;) {
        *end = ' '; /* a line ends behind the number alone */
    }
    memcpy(line + length, number, (size_t)digits);
    self.infos_size += size;
}

int64_t hpcdi_seed(void)
{
    return self.seed;
}

const char *hpcdi_state(void)
{
    return self.state;
}

int hpcdi_environment(void)
{
    return self.environment;
}

/* Tell the collector that the program ends, and wait, with naps, for its word that it may. */
void hpcdi_leave(void)
{
    if (self.has_left || !self.has_joined) {
        return;
    }
    fflush(NULL);
    if (!self.is_over) {
        MPI_Wait(&self.answer.request, MPI_STATUS_IGNORE);
        fill(&self.answer, BYE, 0, 0);
        send(&self.answer, self.pair, 0, ANSWER_TAG);
        ring();
        while (receive(&self.order)->kind != END) { /* an order that nobody does */
            expect(&self.order, self.pair, 0, ORDER_TAG, (size_t)self.actions);
        }
        self.is_over = 1;
    }
    self.has_left = 1;
}

void hpcdi_finalize(void)
{
    hpcdi_leave();
    if (self.has_started_mpi) {
        finalize();
    }
}

/* For hpcdi.f90: communicators are numbers there, and arrays know their size. */
void hpcdi_init_fortran(int observations, int actions, int *comm)
{
    MPI_Comm made;
    hpcdi_init(observations, actions, &made);
    *comm = (int)MPI_Comm_c2f(made);
}

int hpcdi_recv_action_fortran(double *action, int n)
{
    if (n < self.actions) {
        hpcdi_die("hpcdi_recv_action is given an array of %d numbers, and hpcdi_init was told of "
                  "%d actions", n, self.actions);
    }
    return hpcdi_recv_action(action);
}
