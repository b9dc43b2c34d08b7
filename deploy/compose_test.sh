#!/usr/bin/env bash
# Tests compose.yaml with docker: builds the images, starts three admissions and two executors, trains a job, kills
# services and waits for their restart; then the same over three NATS servers, one of which is killed.
#
# Exit 0: passed. 77: this machine cannot run it; the output says why. Any other: failed.
# Where necessary the script installs docker (root and apt), starts dockerd, and makes images without a registry. It
# stops and removes what it started. DOCKER_ROOT=<folder> keeps images between runs.
set -euo pipefail
cd "$(dirname "$0")/.."

export COMPOSE_PROJECT_NAME=elasticflow-test COMPOSE_FILE=deploy/compose.yaml
export NATS_TOKEN=t$RANDOM$RANDOM$RANDOM
export NATS_PORT=0 PROMETHEUS_PORT=0          # any free port of the host
EF_CPU_SHARE=$(awk "BEGIN {print 0.8 * $(nproc) / (2 * 4)}")    # two executors of four slots share the cores
export EF_CPU_SHARE
compose_options=(--env-file deploy/.env)
dockerd_pid="" docker_root="" gathered_wheels=""

say()  { echo "compose-test: $*"; }
skip() { echo "SKIPPED: $*"; exit 77; }


# --- the job ------------------------------------------------------------------------------------------------

# A training job, from its submission to its end before its deadline.
submit_job() {
  compose run --rm -T eflow submit examples/digits.py:Digits --deadline 5m --wait
}


# --- docker -------------------------------------------------------------------------------------------------

compose() {
  if docker compose version >/dev/null 2>&1; then
    docker compose "${compose_options[@]}" "$@"
  else
    docker-compose "${compose_options[@]}" "$@"
  fi
}

has_docker() {
  { docker info || command -v dockerd; } >/dev/null 2>&1 \
    && { docker compose version || docker-compose version; } >/dev/null 2>&1
}

install_docker() {
  has_docker && return
  if [[ $EUID != 0 ]] || ! command -v apt-get >/dev/null; then
    skip "no docker with compose here, and no root or apt to install it"
  fi
  say "installing docker"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
    docker.io docker-compose iptables >/dev/null; } || skip "no docker here, and apt cannot install it"
}

# A daemon with its own socket and folder, apart from any other. It selects the best storage driver of the file system
# (overlay2, else vfs). setsid: Ctrl-C must not reach it, because the cleanup of this script needs it.
start_dockerd() {
  docker info >/dev/null 2>&1 && return
  [[ $EUID == 0 ]] || skip "no docker daemon answers, and starting one needs root"
  docker_root=${DOCKER_ROOT:-$(mktemp -d)}
  mkdir -p "$docker_root"
  export DOCKER_HOST=unix://$docker_root/docker.sock
  setsid dockerd --host "$DOCKER_HOST" --data-root "$docker_root/data" --exec-root "$docker_root/exec" \
    --pidfile "$docker_root/dockerd.pid" >"$docker_root/dockerd.log" 2>&1 &
  dockerd_pid=$!
  if ! wait_for 60 "dockerd" docker info; then
    tail -5 "$docker_root/dockerd.log"
    skip "dockerd does not start here"
  fi
  say "started dockerd, storage driver $(docker info --format '{{.Driver}}')"
}

prepare_images() {
  local images image
  images=$(compose config | sed -n -e 's/^ *image: *//p' -e 's/^ *BASE_IMAGE: *//p' | grep -v '^elasticflow/')
  while read -r image; do
    if ! docker image inspect "$image" >/dev/null 2>&1 && ! docker pull --quiet "$image"; then
      offline_images
      return
    fi
  done < <(sort -u <<<"$images")
}

offline_images() {
  say "no image registry answers: making the images here"
  compgen -G 'deploy/wheels/*.whl' >/dev/null || gathered_wheels=yes
  deploy/offline_images.sh
  export BASE_IMAGE=elasticflow/offline-python PIP_NO_INDEX=1
  export NATS_IMAGE=elasticflow/offline-nats PROMETHEUS_IMAGE=elasticflow/offline-prometheus
}

remove_system() {
  compose --profile cluster down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true
}

clean_up() {
  local status=$?
  if [[ $status != 0 && $status != 77 ]]; then
    say "FAILED; the containers, and the end of their logs:"
    compose ps || true
    compose logs --tail=20 --no-color || true
  fi
  docker info >/dev/null 2>&1 && remove_system
  [[ -z $gathered_wheels ]] || rm -f deploy/wheels/*.whl
  if [[ -n $dockerd_pid ]]; then
    kill "$dockerd_pid"
    wait "$dockerd_pid" || true
    [[ -n ${DOCKER_ROOT:-} ]] || rm -rf "$docker_root"
  fi
  exit "$status"
}


# --- conditions to wait for --------------------------------------------------------------------------------------

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
  local timeout_s=$1 what=$2 deadline_s=$((SECONDS + $1))
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline_s)) || { say "not within ${timeout_s} s: $what"; return 1; }
    sleep 1
  done
}

# healthy SERVICE COUNT: the service has that many healthy containers.
healthy() {
  local containers
  mapfile -t containers < <(compose ps -q "$1")
  [[ $(docker inspect --format '{{.State.Health.Status}}' "${containers[@]}" | grep -c '^healthy$') == "$2" ]]
}

restarted_and_healthy() {
  [[ $(docker inspect --format '{{.RestartCount}} {{.State.Health.Status}}' "$1") == "1 healthy" ]]
}

# scraped COUNT: Prometheus reaches that many processes.
scraped() {
  compose exec -T admission python -c "
import json, urllib.request
url = 'http://prometheus:9090/api/v1/query?query=sum(up)'
result = json.load(urllib.request.urlopen(url, timeout=5))['data']['result']
raise SystemExit(result[0]['value'][1] != '$1')"
}

# The NATS server that leads the pool's ledger, as compose names it.
ledger_leader() {
  compose exec -T admission python -c "
import json, urllib.request
jetstream = json.load(urllib.request.urlopen('http://nats:8222/jsz?streams=true', timeout=5))
streams = {stream['name']: stream for stream in jetstream['account_details'][0]['stream_detail']}
print(streams['EF_LEDGER_default']['cluster']['leader'].replace('nats-1', 'nats'))"
}

# Kills the process, not the container through docker: only then the restart policy applies.
kill_process_of() { docker exec "$1" sh -c 'kill -9 $(cat /proc/1/task/1/children)'; }


# --- the test -----------------------------------------------------------------------------------------------

start_system() {
  compose up -d --scale admission=3 --scale executor=2
  local service
  wait_for 60 "nats healthy" healthy nats 1
  wait_for 90 "3 admissions healthy" healthy admission 3
  wait_for 90 "2 executors healthy" healthy executor 2
  for service in allocator placement monitor; do
    wait_for 90 "$service healthy" healthy "$service" 1
  done
}

test_one_server() {
  start_system
  say "up: 3 admissions, 2 executors, allocator, placement, monitor"
  wait_for 60 "Prometheus scrapes all 8 processes" scraped 8
  say "Prometheus scrapes all 8 processes"
  submit_job
  say "a job went through"

  local service container
  for service in admission allocator executor; do
    container=$(compose ps -q "$service" | head -1)
    kill_process_of "$container"
    wait_for 60 "$service back after kill -9" restarted_and_healthy "$container"
    say "$service came back after kill -9"
  done
  submit_job
  say "a job went through after the kills"
  remove_system
}

test_three_servers() {
  compose_options=(--env-file deploy/cluster.env --profile cluster)
  start_system
  wait_for 60 "nats-2 healthy" healthy nats-2 1
  wait_for 60 "nats-3 healthy" healthy nats-3 1
  say "up over three NATS servers"
  local leader
  leader=$(ledger_leader)
  compose kill "$leader"
  compose run --rm -T eflow jobs       # at once: the command itself waits for the election
  submit_job
  say "a job went through with $leader dead, which led the ledger"
  remove_system
}

install_docker
trap clean_up EXIT
start_dockerd
remove_system                               # of an earlier run that was killed
prepare_images
compose build --quiet admission executor     # the others share their two images
test_one_server
test_three_servers
say "passed"
