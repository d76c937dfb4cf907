#!/usr/bin/env bash
# A throw-away, real Slurm cluster of N virtual nodes on this machine: for developers and for CI.
#
#   slurm_dev_cluster.sh install [--accounting]   Debian's packages (as root)
#   slurm_dev_cluster.sh up DIR [options]         start it; DIR: a new folder with a short name
#   . DIR/env.sh                                  now sbatch, srun, squeue speak to it
#   slurm_dev_cluster.sh unplug DIR NODE          kill that node and all that runs on it
#   slurm_dev_cluster.sh up DIR                   start what is missing again, as it was
#   slurm_dev_cluster.sh down DIR [--remove]      cancel its jobs, stop it; --remove: DIR, too
#
# Options of up, for a new DIR:
#   --nodes N        nodes node1 ... nodeN                                   (default 4)
#   --cpus N         CPUs of each; more than there are is fine               (default 4)
#   --memory MB      memory of each; counted, not enforced                   (default 8000)
#   --gpus N         GPUs of each; they are variables only                   (default 2)
#   --accounting     slurmdbd and a MariaDB of its own, so that sacct works
#   --config FILE    lines to add to slurm.conf
#
# It needs neither systemd nor cgroups nor root (fake GPUs need root, or consoles). Every daemon
# listens on the loopback address only and is stopped by its process id, after a look at whether it
# still is the one that was started here. Nodes have a host name each, by namespaces, so that MPI
# can tell them apart; they share the kernel, the files and the cores.
set -euo pipefail
umask 022
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"

PACKAGES=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix2)
ACCOUNTING_PACKAGES=(slurmdbd slurm-wlm-mysql-plugin mariadb-server)
MARK="# written by slurm_dev_cluster.sh:"

say() { printf 'slurm_dev_cluster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
usage() { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0"; }

# ------------------------------------------------------------------------------------- processes
# A process of this cluster has SLURM_CONF=DIR/etc/slurm.conf in its environment.

env_of() { { tr '\0' '\n' <"/proc/$1/environ"; } 2>/dev/null; }
name_of() { cat "/proc/$1/comm" 2>/dev/null || true; }
parent_of() { awk '/^PPid:/ { print $2 }' "/proc/$1/status" 2>/dev/null; }

# pid_of DAEMON NAME: process id of a daemon by its pid file, if it runs and is this cluster's
pid_of() {
  local pid
  pid=$(cat "$dir/run/$2.pid" 2>/dev/null) && [[ $pid =~ ^[0-9]+$ ]] || return 1
  [[ $(name_of "$pid") == "$1" ]] || return 1
  env_of "$pid" | grep -qxF "SLURM_CONF=$SLURM_CONF" || return 1
  echo "$pid"
}

# stop DAEMON NAME: end it by TERM, and if it does not end within 10 s by KILL
stop() {
  local pid
  if pid=$(pid_of "$1" "$2"); then
    kill -TERM "$pid" 2>/dev/null || true
    for _ in $(seq 200); do
      pid_of "$1" "$2" >/dev/null || break
      sleep 0.05
    done
    if pid_of "$1" "$2" >/dev/null; then
      say "$1 ($pid) did not end by SIGTERM; SIGKILL"
      kill -KILL "$pid" 2>/dev/null || true
    fi
  fi
  rm -f "$dir/run/$2.pid"
}

# job_pids [NODE [UTS]]: processes of jobs and their slurmstepds; of one node: by the name that its
# slurmd gave them, or by the node's host-name namespace UTS
job_pids() {
  local entry pid environment mine=" $$ "
  local of_job='^(HPCDI_OWN_)?SLURM_JOB_ID='  # a packed run has the other name alone
  for ((pid = $$; pid > 1; )); do
    pid=$(parent_of "$pid") || break
    mine+="$pid "
  done
  for entry in /proc/[0-9]*; do
    pid=${entry#/proc/}
    [[ $pid != "$BASHPID" && $mine != *" $pid "* ]] || continue
    environment=$(env_of "$pid") || continue
    grep -qxF "SLURM_CONF=$SLURM_CONF" <<<"$environment" || continue
    [[ $(name_of "$pid") == slurmstepd ]] || grep -qE "$of_job" <<<"$environment" || continue
    if [[ -n ${1:-} ]] && ! grep -qxF "SLURMD_NODENAME=$1" <<<"$environment"; then
      [[ -n ${2:-} && $(readlink "$entry/ns/uts" 2>/dev/null) == "$2" ]] || continue
    fi
    echo "$pid"
  done
}

# kill_jobs SIGNAL [NODE [UTS]]: slurmstepds first, lest they report the others' deaths
kill_jobs() {
  local pid pids
  pids=$(job_pids "${@:2}")
  for pid in $pids; do
    if [[ $(name_of "$pid") == slurmstepd ]]; then kill "-$1" "$pid" 2>/dev/null || true; fi
  done
  for pid in $pids; do kill "-$1" "$pid" 2>/dev/null || true; done
  [[ -z $pids ]]
}

# wait_for SECONDS WHAT COMMAND...
wait_for() {
  local end=$((SECONDS + $1)) what=$2
  until "${@:3}" >/dev/null 2>&1; do
    [[ $SECONDS -lt $end ]] || die "$what did not come up; its log is in $dir/log"
    sleep 0.1
  done
}

# ----------------------------------------------------------------------------------- configuration

# free_ports N: the first of N consecutive ports that nobody listens on
free_ports() {
  local base i
  for _ in $(seq 200); do
    base=$((12000 + (RANDOM % 2000) * 10))
    for ((i = 0; i < $1; i++)); do
      if (: <"/dev/tcp/127.0.0.1/$((base + i))") 2>/dev/null; then continue 2; fi
    done
    echo "$base"
    return
  done
  die "there are no free ports between 12000 and 32000"
}

# list PREFIX FIRST LAST: as Slurm writes it; it takes no brackets around a single number
list() { if [[ $2 == "$3" ]]; then echo "$1$2"; else echo "$1[$2-$3]"; fi; }

# gres.conf must name character devices, at which Slurm only looks
configure_gpus() {
  local i device=$dir/dev/gpu
  for ((i = 0; i < gpus; i++)); do mknod -m 666 "$device$i" c 1 3 2>/dev/null || break; done
  [[ -c $device$((gpus - 1)) ]] || device=/dev/tty
  [[ -c $device$((gpus - 1)) ]] || die "--gpus $gpus needs root, or as many consoles; try --gpus 0"
  echo "NodeName=$(list node 1 "$nodes") Name=gpu File=$(list "$device" 0 $((gpus - 1)))" \
    >"$dir/etc/gres.conf"
}

configure_accounting() {
  local password me=$1 port=$2
  password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  install -m 600 /dev/null "$dir/etc/slurmdbd.conf"
  cat >"$dir/etc/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge.socket
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$port
CommunicationParameters=NoInAddrAny
SlurmUser=$me
LogFile=$dir/log/slurmdbd.log
PidFile=$dir/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((port + 1))
StorageUser=slurm
StoragePass=$password
StorageLoc=slurm_acct
CommitDelay=0
END
  cat >"$dir/etc/my.cnf" <<END
[mariadbd]
user=$me
datadir=$dir/mysql
socket=$dir/run/mysql.sock
pid-file=$dir/run/mariadbd.pid
log-error=$dir/log/mariadbd.log
bind-address=127.0.0.1
port=$((port + 1))
skip-name-resolve
innodb_buffer_pool_size=64M
innodb_log_file_size=32M
innodb_flush_log_at_trx_commit=0
innodb_lock_wait_timeout=900
innodb_use_native_aio=0
performance_schema=off
END
}

configure() {
  local me port i listen=NoInAddrAny,NoCtldInAddrAny lines=""
  [[ -z $(ls -A "$dir") ]] || die "$dir is not empty, and no cluster of this script"
  me=$(id -un)
  mkdir -p "$dir"/{etc,run,log,state,spool,tmp,dev}
  chmod go-w "$dir" "$dir"/{etc,run,log,state,spool,tmp}
  port=$(free_ports $((nodes + 3)))
  install -m 600 /dev/null "$dir/etc/munge.key"
  head -c 128 /dev/urandom >"$dir/etc/munge.key"
  # with no interface but lo, slurmctld does not find its own name otherwise
  [[ -n $(hostname -I | tr -d ' ') ]] || listen+=,EnableIPv6
  if [[ $gpus -gt 0 ]]; then configure_gpus; lines+="GresTypes=gpu"$'\n'; fi
  if [[ $accounting == yes ]]; then
    configure_accounting "$me" $((port + nodes + 1))
    lines+="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + nodes + 1))
# clients look here for the socket, and not into AuthInfo
AccountingStoragePass=$dir/run/munge.socket
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
"
    if [[ $gpus -gt 0 ]]; then lines+="AccountingStorageTRES=gres/gpu"$'\n'; fi
  else
    lines+="AccountingStorageType=accounting_storage/none"$'\n'
  fi
  for ((i = 1; i <= nodes; i++)); do
    mkdir -p "$dir/spool/node$i" "$dir/tmp/node$i"
    chmod 1777 "$dir/tmp/node$i"
  done
  { for ((i = 1; i <= nodes; i++)); do echo "127.0.0.1 node$i"; done; cat /etc/hosts; } \
    >"$dir/etc/hosts"
  : >"$dir/etc/plugstack.conf"
  # slurmd's own search for cgroups fails where /sys/fs/cgroup is not mounted
  echo CgroupPlugin=cgroup/v1 >"$dir/etc/cgroup.conf"
  echo "export SLURM_CONF=$SLURM_CONF" >"$dir/env.sh"
  write_slurm_conf "$me" "$port" "$listen" "$lines" >"$SLURM_CONF.new"
  if [[ -n $extra ]]; then cat "$extra" >>"$SLURM_CONF.new"; fi
  mv "$SLURM_CONF.new" "$SLURM_CONF"
}

# write_slurm_conf USER PORT LISTEN LINES
write_slurm_conf() {
  cat <<END
$MARK nodes=$nodes accounting=$accounting
ClusterName=throwaway
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$2
SlurmUser=$1
SlurmdUser=$1
AuthType=auth/munge
# a requeued job waits this long and a second: 120 s by default, 5 at least
AuthInfo=socket=$dir/run/munge.socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=$3
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
# srun --mpi=pmix makes a folder there, of the same name on each node
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
PlugStackConfig=$dir/etc/plugstack.conf
MailProg=/bin/true
# follows the process tree, and so finds what has called setsid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=$((memory / cpus / 2 > 0 ? memory / cpus / 2 : 1))
EnforcePartLimits=ALL
SchedulerType=sched/backfill
# a job of sbatch starts within a second
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
# the declared CPUs and memory count, not the real ones
SlurmdParameters=config_overrides
$4JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobcomp.log
JobRequeue=1
ReturnToService=2
# a node is lost when it has been silent for SlurmdTimeout
SlurmctldTimeout=30
SlurmdTimeout=10
MessageTimeout=10
BatchStartTimeout=10
CompleteWait=0
KillWait=5
UnkillableStepTimeout=30
# scontrol and squeue know ended jobs for a day
MinJobAge=86400
MaxJobCount=20000
# ids of another cluster's jobs do not come again: submitit's folders are named by them
FirstJobId=$((1 + RANDOM % 900))000
PropagateResourceLimits=NONE
NodeName=$(list node 1 "$nodes") NodeHostname=$host NodeAddr=127.0.0.1 Port=$(list "" $(($2 + 1)) $(($2 + nodes))) CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$memory$([[ $gpus == 0 ]] || echo " Gres=gpu:$gpus") State=UNKNOWN
# a job in debug puts one in preempt out: its --signal, then TERM, and after GraceTime the requeue
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=debug Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE DefaultTime=10 State=UP
PartitionName=preempt Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=10 MaxTime=60 DefaultTime=10 State=UP
END
}

# ------------------------------------------------------------------------------------ the commands

missing() {
  local name names=(munged slurmctld slurmd sbatch srun scontrol sinfo)
  [[ $1 == no ]] || names+=(slurmdbd mariadbd mariadb-install-db mariadb)
  for name in "${names[@]}"; do command -v "$name" >/dev/null || echo "$name"; done
}

install_packages() {
  local wanted=("${PACKAGES[@]}") folder
  [[ ${1:-} != --accounting ]] || wanted+=("${ACCOUNTING_PACKAGES[@]}")
  command -v apt-get >/dev/null || die "install these with your package manager: ${wanted[*]}"
  [[ $(id -u) == 0 ]] || die "as root: apt-get install --no-install-recommends ${wanted[*]}"
  apt-get update -qq >/dev/null || say "apt-get update failed; trying with the lists there are"
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${wanted[@]}" \
    >/dev/null
  # Slurm's pmix plugin opens libpmix.so, a link that only libpmix-dev has
  for folder in /usr/lib/*/pmix2/lib; do
    if [[ -e $folder/libpmix.so.2 && ! -e $folder/libpmix.so ]]; then
      ln -s libpmix.so.2 "$folder/libpmix.so"
    fi
  done
}

install_database() {
  mariadb-install-db --defaults-file="$dir/etc/my.cnf" --user="$(id -un)" \
    --auth-root-authentication-method=socket --auth-root-socket-user="$(id -un)" \
    --skip-test-db >"$dir/log/mariadb-install-db.log" 2>&1 9>&-
}

serve_database() {
  local code=139
  while [[ $code == 139 ]]; do  # again after a crash, not after its end
    code=0
    setsid --wait mariadbd --defaults-file="$dir/etc/my.cnf" || code=$?
  done
}

start_database() {
  local sql=(mariadb --defaults-file=/dev/null "--socket=$dir/run/mysql.sock" -u "$(id -un)")
  if ! pid_of mariadbd mariadbd >/dev/null; then
    # mariadbd 10.11 crashes now and then while it starts (2 of 18 times on a busy machine)
    local attempt
    for attempt in 1 2 3; do
      [[ ! -d $dir/mysql/mysql ]] || break
      install_database && break
      rm -rf "$dir/mysql" && mkdir -p "$dir/mysql"
      [[ $attempt -lt 3 ]] ||
        die "mariadb-install-db failed: $(grep -m 3 -i error "$dir/log/mariadb-install-db.log")"
    done
    serve_database </dev/null >/dev/null 2>&1 9>&- &
    wait_for 30 mariadbd "${sql[@]}" -e 'select 1'
    "${sql[@]}" -e "create database if not exists slurm_acct; create user if not exists
      slurm@127.0.0.1 identified by '$(sed -n 's/^StoragePass=//p' "$dir/etc/slurmdbd.conf")';
      grant all on slurm_acct.* to slurm@127.0.0.1;"
  fi
  if ! pid_of slurmdbd slurmdbd >/dev/null; then
    rm -f "$dir/run/slurmdbd.pid"
    (cd "$dir/run" && slurmdbd 9>&- >&2) || die "slurmdbd did not start; see $dir/log"
    wait_for 30 slurmdbd sacctmgr -n show cluster
  fi
  sacctmgr -in add cluster throwaway >/dev/null 2>&1 || true  # it may know it
}

start_node() {
  local log=$dir/log/slurmd-$1.log space=(unshare --uts --mount --propagation slave)
  [[ $(id -u) == 0 ]] || space=(unshare --user --map-current-user --keep-caps "${space[@]:1}")
  if [[ -z ${has_namespaces:-} ]]; then
    has_namespaces=no
    if "${space[@]}" sh -c "hostname $1 && mount --bind '$dir/etc/hosts' /etc/hosts" 2>/dev/null
    then has_namespaces=yes; else say "no namespaces here: all nodes bear one host name"; fi
  fi
  if [[ $has_namespaces == yes ]]; then
    # shellcheck disable=SC2016 # expanded by the shell within
    "${space[@]}" sh -c 'hostname "$1" && mount --bind "$2/etc/hosts" /etc/hosts &&
      exec slurmd -f "$2/etc/slurm.conf" -N "$1"' slurmd "$1" "$dir" 9>&- >&2
  else
    slurmd -f "$SLURM_CONF" -N "$1" 9>&- >&2
  fi || die "slurmd of $1 did not start: $(tail -n 1 "$log")"
}

all_ready() { ! sinfo -h -N -o %T | grep -Eqv '^(idle|mixed|allocated|completing)$'; }

start() {
  local i name lacking
  lacking=$(missing "$accounting" | tr '\n' ' ')
  [[ -z $lacking ]] || die "not installed: $lacking; as root: $0 install$([[ $accounting == no ]] || echo " --accounting")"
  if ! pid_of munged munged >/dev/null; then
    rm -f "$dir"/run/munge.socket{,.lock}
    munged --force --socket="$dir/run/munge.socket" --key-file="$dir/etc/munge.key" \
      --log-file="$dir/log/munged.log" --pid-file="$dir/run/munged.pid" \
      --seed-file="$dir/run/munged.seed" 9>&- >&2 || die "munged did not start; see $dir/log"
  fi
  if [[ $accounting == yes ]]; then start_database; fi
  if ! pid_of slurmctld slurmctld >/dev/null; then
    slurmctld -f "$SLURM_CONF" -L "$dir/log/slurmctld.log" 9>&- >&2 ||
      die "slurmctld did not start; see $dir/log"
  fi
  wait_for 20 slurmctld scontrol ping
  for ((i = 1; i <= nodes; i++)); do
    pid_of slurmd "slurmd-node$i" >/dev/null || start_node "node$i"
  done
  for name in $(sinfo -h -N -t down,drain -o %N | sort -u); do  # as a test has left them
    scontrol update nodename="$name" state=resume >/dev/null 2>&1 || true
  done
  wait_for 30 "a node" all_ready
}

unplug() {
  local pid uts
  [[ $1 =~ ^node[0-9]+$ ]] || die "which node? node1, node2, ..."
  pid=$(pid_of slurmd "slurmd-$1") || die "$1 is not up"
  uts=$(readlink "/proc/$pid/ns/uts")
  [[ $uts != "$(readlink "/proc/$$/ns/uts")" ]] || uts=
  kill -KILL "$pid"
  for _ in 1 2 3; do kill_jobs KILL "$1" "$uts" && break; done
  rm -f "$dir/run/slurmd-$1.pid"
}

down() {
  local file ids
  if pid_of slurmctld slurmctld >/dev/null; then
    ids=$(timeout 10 squeue -h -o %A 2>/dev/null | sort -u) || ids=
    if [[ -n $ids ]]; then
      # shellcheck disable=SC2086 # one word each
      timeout 20 scancel $ids 2>/dev/null || true
      for _ in $(seq 70); do
        [[ -n $(timeout 10 squeue -h -o %A 2>/dev/null) ]] || break
        sleep 0.1
      done
    fi
  fi
  for file in "$dir"/run/slurmd-*.pid; do
    [[ ! -e $file ]] || stop slurmd "$(basename "$file" .pid)"
  done
  stop slurmctld slurmctld
  stop slurmdbd slurmdbd
  stop mariadbd mariadbd
  if ! kill_jobs TERM; then
    sleep 1
    kill_jobs KILL || true
  fi
  stop munged munged
}

# known: read what the cluster in $dir was made with
known() {
  read -r nodes accounting < <(sed -n "s/^$MARK nodes=\([0-9]*\) accounting=\([a-z]*\)$/\1 \2/p" \
    "$SLURM_CONF" 2>/dev/null) || die "there is no cluster of this script in $dir"
}

nodes=4 cpus=4 memory=8000 gpus=2 accounting=no extra="" remove=""
command=${1:-}
case $command in
  -h | --help | help) usage; exit 0 ;;
  install) install_packages "${@:2}"; exit 0 ;;
  up | down | unplug) [[ $# -ge 2 ]] || die "$command needs a folder; see $0 --help" ;;
  *) usage >&2; exit 2 ;;
esac
[[ $command == up ]] && mkdir -p "$2"
dir=$(cd "$2" && pwd -P)
shift 2
export SLURM_CONF=$dir/etc/slurm.conf
host=$(uname -n)
host=${host%%.*}
if [[ $command == unplug ]]; then known; unplug "${1:-}"; exit 0; fi

while [[ $# -gt 0 ]]; do
  case $1 in
    --nodes | --cpus | --memory | --gpus)
      [[ ${2:-} =~ ^[0-9]{1,6}$ ]] || die "$1 needs a number, not '${2:-}'"
      declare "${1#--}=$2"; shift 2 ;;
    --accounting) accounting=yes; shift ;;
    --config) extra=${2:?--config needs a file}; shift 2 ;;
    --remove) remove=yes; shift ;;
    *) die "unknown option $1; see $0 --help" ;;
  esac
done
[[ $nodes -ge 1 && $cpus -ge 1 ]] || die "there must be a node and a CPU at least"
# a path of a UNIX socket has 107 bytes, and slurmstepd's is the longest
[[ ${#dir} -le 60 && $dir != *[[:space:]]* ]] ||
  die "$dir: choose a name of 60 characters at most, without blanks"

if [[ $command == down ]]; then
  known
  down
  if [[ -n $remove ]]; then rm -rf "$dir"; fi
  exit 0
fi
is_new=
if [[ -s $SLURM_CONF ]]; then known; else
  lacking=$(missing "$accounting" | tr '\n' ' ')
  [[ -z $lacking ]] || die "not installed: $lacking; as root: $0 install$([[ $accounting == no ]] || echo " --accounting")"
  is_new=yes
  configure
fi
exec 9>"$dir/run/lock"
flock -w 60 9 || die "another $0 is at work on $dir"
# what a first start has begun does not outlive its failure; the logs stay
trap '[[ $? == 0 || -z $is_new ]] || down' EXIT
start
say "up: $nodes nodes; now: . $dir/env.sh"
