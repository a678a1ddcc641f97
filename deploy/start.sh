#!/bin/sh
# Start a variant of vLLM by name, watch it and stop it, on a Linux host with vLLM and a POSIX shell: no Python of ours, only
# curl or wget and setsid (util-linux). What each variant runs stands in variants.sh, which is written from the YAML files.
set -u

usage() {
    cat <<'END'
usage: start.sh VARIANT [options]       start it, wait until it answers
       start.sh show VARIANT [options]  the command line that this would run
       start.sh list                    the variants
       start.sh status [--port N]       what was started here; 1 where none is up
       start.sh logs --port N [-n LINES]
                                        the end of a server's log
       start.sh memory --port N         what each of its processes holds:
                                        resident (kB), of a GPU (MiB)
       start.sh down --port N           end its processes, wait for its port;
                                        with --only START that start's alone

  --port N            (8000)
  --host ADDRESS      address to listen on (127.0.0.1)
  --model-path DIR    a model's folder instead of the variant's model
  --set FLAG=VALUE    change an argument: true and false switch, an empty value
                      drops it, a mapping is JSON; may be repeated
  --engine E          vllm (the default) or simulator
  --program P         the engine's program ($VLLM, else vllm in the path;
                      $INFERLOAD, else inferload, for the simulator)
  --wait-s S          give up after so many seconds (1800; simulator 30)

A key for the server comes from VLLM_API_KEY, never from the command line.
State and logs lie in $INFERLOAD_STATE, else ~/.inferload/deploy. Exit codes:
0 fine, 1 nothing is up, 2 a start that could not be made: one line says why.
END
}

# <variants>
# shellcheck source=/dev/null
. "$(dirname -- "$0")/variants.sh"
# </variants>

newline='
'
host=127.0.0.1 port='' model_path='' settings='' engine=vllm program='' wait_s='' lines=40
variant='' server='' log='' url='' begun='' only=''
simulated_as='' gpus=0

fail() {
    printf 'start.sh: %s\n' "$*" >&2
    exit 2
}

# -- processes: those of a server are its process group, as long as one of them holds the log open; a number alone proves nothing

members() { # of group $1 with log $2, by process id
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        id=${stat#/proc/} id=${id%/stat}
        # The name stands in brackets and may hold anything; behind the last one: state, parent, group.
        group=${line##*) } group=${group#* } group=${group#* } group=${group%% *}
        [ "$group" = "$1" ] || continue
        for output in 1 2; do
            if [ "$(readlink "/proc/$id/fd/$output" 2>/dev/null)" = "$2" ]; then
                printf '%s\n' "$id"
                break
            fi
        done
    done
}

alive() { # its leader first, which is one look; all processes only where that has gone
    [ -n "$server" ] || return 1
    [ "$(readlink "/proc/$server/fd/1" 2>/dev/null)" = "$log" ] || [ -n "$(members "$server" "$log")" ]
}

listening() { # on port $1, anyone: state 0A in the kernel's tables
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q "^ *[0-9]*: [0-9A-F]*:$(printf '%04X' "$1") [0-9A-F:]* 0A "
}

nap() { sleep 0.1 2>/dev/null || sleep 1; }

# -- what is remembered: PORT.state, a line each: process group, log, address to ask, engine, variant, model, start

state_dir() {
    state=${INFERLOAD_STATE:-${HOME:+$HOME/.inferload/deploy}}
    [ -n "$state" ] || fail "neither INFERLOAD_STATE nor HOME is set: name a folder for states and logs"
    mkdir -p "$state" || fail "$state: cannot be made; set INFERLOAD_STATE to a folder of yours"
    state=$(cd "$state" && pwd -P)
}

remember() { printf '%s\n' "$server" "$log" "$url" "$engine" "$variant" "$model" "${INFERLOAD_START:-}" >"$state/$port.state"; }

recall() { # of port $1
    server='' log='' url='' engine='' variant='' model='' begun=''
    [ -f "$state/$1.state" ] || return 1
    {
        read -r server && read -r log && read -r url && read -r engine && read -r variant && read -r model &&
            { read -r begun || begun=''; } # a name for the start, where it was given one
    } <"$state/$1.state"
}

forget() { rm -f "$state/$port.state"; }

remove_old_logs() { # all but the last ten, and those in use
    for old in $(cd "$state" && printf '%s\n' *.log | sort -t- -k2,2r | tail -n +11); do
        grep -qxF "$state/$old" "$state"/*.state 2>/dev/null || rm -f "$state/${old:?}"
    done
}

# -- verbs

healthy() {
    if command -v curl >/dev/null 2>&1; then
        curl -fsS -o /dev/null --noproxy '*' --max-time 5 "$1/health" 2>/dev/null
    else
        wget -q -O /dev/null --no-proxy -T 5 "$1/health" 2>/dev/null || wget -q -O /dev/null -T 5 "$1/health" 2>/dev/null
    fi
}

why() { # the last error of the log, else its last lines
    grep -E '^[^ ]*(Error|Exception)\b|: error: |^inferload: |ERROR.*(Error|Exception):' "$log" | tail -n 1 | grep . || tail -n 5 "$log"
    printf '(log: %s)' "$log"
}

end_group() { # TERM, and KILL what is left after 15 s; 1 where there was nothing to end
    alive || return 1
    for signal in TERM KILL; do
        kill -s "$signal" -- "-$server" 2>/dev/null
        began=$(date +%s)
        while alive && [ $(($(date +%s) - began)) -lt 15 ]; do nap; done
    done
}

stop() {
    recall "$port" || fail "port $port: nothing was started there by this script"
    [ -z "$only" ] || [ "$only" = "$begun" ] || fail "port $port: another start's server is left alone"
    if end_group; then said=stopped; else said='had ended already'; fi
    began=$(date +%s)
    while listening "$port" && [ "$said" = stopped ] && [ $(($(date +%s) - began)) -lt 15 ]; do nap; done
    forget
    printf '%s on port %s: %s\n' "$engine" "$port" "$said"
}

status() {
    up=1 any=''
    for file in "$state"/*.state; do
        known=${file##*/} known=${known%.state}
        if [ -n "$port" ] && [ "$port" != "$known" ]; then continue; fi
        recall "$known" || continue
        if ! alive; then said=ended; elif healthy "$url"; then said=up up=0; else said='not answering'; fi
        printf 'port %s  %s  %s %s (%s)  pid %s\n' "$known" "$said" "$engine" "$variant" "$model" "$server"
        any=yes
    done
    [ -n "$any" ] || printf 'no server was started here%s\n' "${port:+ on port $port}" >&2
    return "$up"
}

show_log() {
    recall "$port" || fail "port $port: nothing was started there by this script"
    tail -n "$lines" "$log"
    printf 'whole log: %s\n' "$log"
}

memory() { # lines `resident PID KB` and `gpu PID GPU MIB`; none of the latter where nvidia-smi does not know the processes
    recall "$port" || fail "port $port: nothing was started there by this script"
    own=$(members "$server" "$log")
    [ -n "$own" ] || fail "port $port: $engine has ended"
    for id in $own; do
        kb=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$id/status" 2>/dev/null)
        [ -z "$kb" ] || printf 'resident %s %s\n' "$id" "$kb"
    done
    nvidia-smi --query-compute-apps=pid,gpu_uuid,used_memory --format=csv,noheader,nounits 2>/dev/null |
        while IFS=' ,' read -r id gpu mib; do
            if printf '%s\n' "$own" | grep -qxF -- "$id"; then printf 'gpu %s %s %s\n' "$id" "$gpu" "$mib"; fi
        done
}

find_program() {
    if [ -z "$program" ] && [ "$engine" = vllm ]; then program=${VLLM:-vllm}; fi
    [ -n "$program" ] || program=${INFERLOAD:-inferload}
    [ "$verb" != show ] || return 0
    command -v "$program" >/dev/null 2>&1 ||
        fail "$engine: no program $program here; install it, or name it with --program"
}

visible_gpus() { # how many of the GPUs of $1, a list of nvidia-smi, CUDA_VISIBLE_DEVICES leaves: CUDA reads up to the first invalid entry
    visible=0 seen=, rest=$CUDA_VISIBLE_DEVICES,
    while [ -n "$rest" ]; do
        entry=$(printf '%s' "${rest%%,*}" | tr -d ' ') rest=${rest#*,}
        case $entry in
        GPU-*) [ "$(printf '%s' "$1" | grep -cF -- "(UUID: $entry")" -eq 1 ] || break ;;
        MIG-*) ;;
        '' | *[!0-9]*) break ;;
        *) [ "$entry" -lt "$found" ] 2>/dev/null || break ;;
        esac
        case $seen in *",$entry,"*) visible=0 && break ;; esac
        seen=$seen$entry, visible=$((visible + 1))
    done
    printf '%s' "$visible"
}

check_gpus() {
    if [ "$gpus" -eq 0 ] || [ "$verb" = show ]; then return; fi
    listed=$(nvidia-smi -L 2>/dev/null)
    found=$(printf '%s' "$listed" | grep -c '^GPU')
    [ "$found" -ge "$gpus" ] || fail "$variant: needs $gpus GPU(s), nvidia-smi lists $found here"
    [ -n "${CUDA_VISIBLE_DEVICES+set}" ] || return 0
    visible=$(visible_gpus "$listed")
    [ "$visible" -ge "$gpus" ] || fail "$variant: needs $gpus GPU(s), CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES leaves $visible"
}

check_host() {
    [ -r /proc/net/tcp ] || fail "this needs Linux with /proc"
    command -v setsid >/dev/null 2>&1 || fail "setsid: not in the path; it comes with util-linux"
    command -v curl >/dev/null 2>&1 || command -v wget >/dev/null 2>&1 || fail "neither curl nor wget is in the path"
    if recall_up=$(recall "$port" && alive && printf '%s' "$engine"); then
        fail "port $port: $recall_up is up there already; start.sh down --port $port, or another --port"
    fi
    if listening "$port"; then fail "port $port: somebody listens there; name another with --port"; fi
}

gpus_of() { # what the parallel sizes among these flags come to
    taken=1
    while [ $# -gt 1 ]; do
        case $1 in
        --tensor-parallel-size | --pipeline-parallel-size | --data-parallel-size)
            number "$1" "$2"
            taken=$((taken * $2))
            ;;
        esac
        shift
    done
    printf '%s' "$taken"
}

# launch MODEL FLAGS...: called by use_variant with what the variant is
launch() {
    model=$1
    shift
    while [ -n "$settings" ]; do
        setting=${settings%%"$newline"*} settings=${settings#*"$newline"}
        flag=${setting%%=*} value=${setting#*=}
        left=$# keep=yes
        while [ "$left" -gt 0 ]; do # takes the flag and its value out, in whatever form it stands
            case $1 in "--$flag" | "--no-$flag") keep=no ;; --*) keep=yes ;; esac
            [ "$keep" = no ] || set -- "$@" "$1"
            shift
            left=$((left - 1))
        done
        case $value in
        '' | null | Null | NULL | '~') ;;
        true | True | TRUE) set -- "$@" "--$flag" ;;
        false | False | FALSE) set -- "$@" "--no-$flag" ;;
        *) set -- "$@" "--$flag" "$value" ;;
        esac
    done
    [ "$gpus" -eq 0 ] || gpus=$(gpus_of "$@") || exit 2
    find_program
    if [ "$engine" = simulator ]; then
        [ -z "$model_path" ] || fail "--model-path $model_path: the simulator has no model"
        begin "$program" simulator --host "$host" --port "$port" --model "$model" --hardware "$simulated_as" "$@"
        return
    fi
    if [ -z "$model_path" ] && [ "$gpus" -eq 0 ] && [ "$verb" != show ]; then
        fail "$variant: its model is made where inferload is installed; name a model's folder with --model-path"
    fi
    [ "${VLLM_USE_V1:-1}" != 0 ] || fail "VLLM_USE_V1=0: the V0 engine is gone since vLLM 0.11; leave it out"
    check_gpus
    named=no
    for word in "$@"; do
        case $word in --served-model-name | --served-model-name=* | --served_model_name | --served_model_name=*) named=yes ;; esac
    done
    [ "$named" = yes ] || set -- --served-model-name "$model" "$@"
    begin "$program" serve "${model_path:-$model}" --host "$host" --port "$port" "$@"
}

show() { # a command line as a shell takes it
    for word in "$@"; do
        case $word in
        '' | *[!A-Za-z0-9@%+=:,./_-]*) printf '%s\n' "$word" | sed "s/'/'\\\\''/g; s/^/'/; s/\$/'/" | tr '\n' ' ' ;;
        *) printf '%s ' "$word" ;;
        esac
    done
    echo
}

begin() { # a command line: in a process group of its own, with its log in a new file
    if [ "$verb" = show ]; then
        show "$@"
        return
    fi
    remove_old_logs
    log=$state/$port-$(date +%Y%m%dT%H%M%S)-$$.log
    case $host in 0.0.0.0 | '::') url=http://127.0.0.1:$port ;; *:*) url=http://[$host]:$port ;; *) url=http://$host:$port ;; esac
    rm -f "$state/$port.pid"
    if ! (: >"$log" && : >"$state/$port.pid") 2>/dev/null; then
        fail "$state: cannot be written to; make room there, or set INFERLOAD_STATE to a folder of yours"
    fi
    : "${VLLM_NO_USAGE_STATS:=1}" "${DO_NOT_TRACK:=1}"
    export VLLM_NO_USAGE_STATS DO_NOT_TRACK
    # The inner shell leads the new session; the server takes its place, and with it its number.
    # shellcheck disable=SC2016
    setsid sh -c 'echo "$$" >"$1" || exit 1; shift; exec "$@"' sh "$state/$port.pid" "$@" >"$log" 2>&1 </dev/null &
    tries=0
    while [ ! -s "$state/$port.pid" ]; do
        tries=$((tries + 1))
        [ "$tries" -le 100 ] || fail "$engine: could not be begun; is there room in $state?"
        nap
    done
    read -r server <"$state/$port.pid"
    rm -f "$state/$port.pid"
    if ! remember; then
        end_group
        forget
        fail "$state: cannot be written to; the server was stopped again"
    fi
    trap 'end_group; forget; exit 130' INT TERM
    wait_for
    trap - INT TERM
    printf '%s: %s (%s) at %s after %s s (pid %s)\n' "$engine" "$variant" "$model" "$url" "$waited" "$server"
    printf 'log: %s\nstop: start.sh down --port %s\ncommand: ' "$log" "$port"
    show "$@"
}

given_up() { grep -qE 'EngineCore failed to start|Engine core initialization failed|WorkerProc failed to start' "$log"; }

wait_for() {
    began=$(date +%s) waited=0 told=0 led=0
    [ -n "$wait_s" ] || { if [ "$engine" = simulator ]; then wait_s=30; else wait_s=1800; fi; }
    until healthy "$url"; do
        waited=$(($(date +%s) - began))
        # What a first process that has ended leaves behind, and a server whose log says that it will not come up, get 5 s to end.
        if readlink "/proc/$server/exe" >/dev/null 2>&1 && ! given_up; then led=$waited; fi
        if ! alive || [ $((waited - led)) -gt 5 ]; then
            end_group
            forget
            fail "$engine ended before it answered: $(why | tr '\n' ' ')"
        fi
        if [ "$waited" -ge "$wait_s" ]; then
            end_group
            forget
            fail "$engine did not answer within $wait_s s and was stopped: $(why | tr '\n' ' ')"
        fi
        if [ $((waited - told)) -ge 5 ]; then
            told=$waited
            printf '%s: starting, %s s so far (log: %s)\n' "$engine" "$waited" "$log" >&2
        fi
        if [ "$waited" -lt 5 ]; then nap; else sleep 1; fi # what takes long need not be looked at often
    done
    alive || fail "port $port: somebody else answers there, and $engine has ended; see $log"
}

# -- the command line

number() { case $2 in '' | *[!0-9]*) fail "$1 $2: not a whole number" ;; esac }

add_setting() {
    case $1 in *=*) ;; *) fail "--set $1: write it as flag=value, such as max-num-seqs=8" ;; esac
    flag=${1%%=*}
    while case $flag in -*) true ;; *) false ;; esac do flag=${flag#-}; done
    flag=$(printf '%s' "$flag" | tr _ -)
    case $flag in # the value is not told: it may be a key
    api-key) fail "--set $flag: set VLLM_API_KEY in the environment, a command line is in the process list" ;;
    host | port) fail "--set $flag: give it as --$flag" ;;
    uds) fail "--set $flag: a port is needed to see whether it answers" ;;
    ssl-keyfile | ssl-certfile | tls-key | tls-cert) fail "--set $flag: plain HTTP is spoken here; start a server with TLS by hand" ;;
    esac
    settings=$settings$flag=${1#*=}$newline
}

[ $# -gt 0 ] || { usage >&2; exit 2; }
case $1 in -h | --help) usage; exit 0 ;; -*) fail "$1: name a variant or a verb first; --help lists them" ;; esac
verb=$1
shift
if [ "$verb" = show ]; then
    [ $# -gt 0 ] || fail "show: which variant? start.sh list"
    variant=$1
    shift
fi
while [ $# -gt 0 ]; do
    case $1 in -h | --help) usage; exit 0 ;; esac
    [ $# -gt 1 ] || fail "$1: needs a value, or is not known; see --help"
    case $1 in
    --port) number "$1" "$2"; port=$2 ;;
    --host) host=$2 ;;
    --model-path) model_path=$2 ;;
    --set) add_setting "$2" ;;
    --engine) engine=$2 ;;
    --program) program=$2 ;;
    --wait-s) number "$1" "$2"; wait_s=$2 ;;
    --only) only=$2 ;;
    -n) number "$1" "$2"; lines=$2 ;;
    *) fail "$1: not an option; see --help" ;;
    esac
    shift 2
done
case $engine in vllm | simulator) ;; *) fail "--engine $engine: vllm or simulator" ;; esac
[ -z "$model_path" ] || [ -f "$model_path/config.json" ] || fail "--model-path $model_path: no config.json there"

case $verb in
list) list_variants ;;
status) state_dir; status ;;
down | stop | logs | log | memory) # stop and log: their names before
    state_dir
    [ -n "$port" ] || fail "$verb: which one? give --port"
    case $verb in down | stop) stop ;; logs | log) show_log ;; memory) memory ;; esac
    ;;
*)
    [ -n "$variant" ] || variant=$verb
    [ -n "$port" ] || port=8000
    list_variants | grep -qxF -- "$variant" || fail "variant $variant: not known; start.sh list"
    if [ "$verb" != show ]; then
        state_dir
        check_host
    fi
    use_variant "$variant"
    ;;
esac
