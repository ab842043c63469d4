# The words that the runbook's commands are written in, for this repository's compose file. In bash: source runbook/compose.sh
# Where the system runs elsewhere, give these words another body; the pages stay as they are.

oncepost_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

compose() { docker compose --project-directory "$oncepost_folder" "$@"; }

# One statement, as PostgreSQL's superuser. Columns are separated by " | ".
sql() {
  compose exec -T postgres psql -XqA -F ' | ' -P footer=off -U postgres -d "${2:-oncepost}" -c "$1"
}
# One statement in the database of the example consumer.
receipts_sql() { sql "$1" receipts; }

# The commands of the API and of the relay, in a container of their own: they work while the service is stopped.
api() { compose run --rm --no-deps -T api api "$@"; }
relay() { compose run --rm --no-deps -T relay relay "$@"; }
# A tool of Kafka's, such as: kafka topics --list
kafka() { compose exec -T kafka "/opt/kafka/bin/kafka-$1.sh" --bootstrap-server kafka:19092 "${@:2}"; }

# Where a service answers: its port on this machine.
service_port() {
  case $1 in
    api) echo "${ONCEPOST_API_PORT:-8080}" ;;
    relay) echo "${ONCEPOST_RELAY_PORT:-9464}" ;;
    receipts) echo "${ONCEPOST_RECEIPTS_PORT:-9465}" ;;
  esac
}
# The metrics of a service whose lines begin with a pattern; fails if there is none, as `logs` does.
metrics() (
  set -o pipefail
  curl -sS "http://localhost:$(service_port "$1")/metrics" | grep -E -- "^($2)" | LC_ALL=C sort
)
# Whether a service is ready, in its own words.
ready() { curl -sS "http://localhost:$(service_port "$1")/readyz" 2>/dev/null || echo "no answer"; }
# The last lines of a service's log that match a pattern: 5, or as many as are asked for.
logs() (
  set -o pipefail
  compose logs --no-log-prefix "$1" 2>&1 | grep -E -- "$2" | tail -n "${3:-5}"
)
# The most frequent values of a field, of log lines that come in: logs api PATTERN 500 | top principal_id
top() { grep -o "\"$1\":\"[^\"]*\"" | sort | uniq -c | sort -rn | head -n 3; }
# Whether services run.
running() {
  local service
  for service in "$@"; do
    echo "$service $(compose ps --all --format '{{.State}}' "$service" | grep . || echo exited)"
  done
}
# How full the disk is that PostgreSQL writes to.
disk() { compose exec -T postgres df -P /var/lib/postgresql | awk 'NR == 2 { print $5 " used, " $4 " KiB free" }'; }

# A POST to the API with the API key in $api_key: path, idempotency key, body. The key goes in by standard input, because
# other users of the machine can read command lines.
post() {
  curl -sS --config - --data-binary "$3" --write-out '%{http_code} replayed: %header{idempotent-replayed}\n' \
    "http://localhost:$(service_port api)$1" <<CONFIG
header = "Authorization: Bearer $api_key"
header = "Idempotency-Key: $2"
header = "Content-Type: application/json"
CONFIG
}

# Starts services, anew where their configuration has changed, and waits until they are ready.
start() {
  compose up -d --no-deps --wait --quiet-pull "$@" >/dev/null 2>&1 || {
    echo "not ready: $*"
    return 1
  }
}
stop() { compose stop "$@" 2>/dev/null; }
restart() { stop "$@" && start "$@"; }
# A backup of the ledger's database by a name, in this folder, and the way back. API and relay have to be stopped for the
# latter, which makes the database anew: some of its objects can't be dropped one by one.
backup() { (umask 077 && compose exec -T postgres pg_dump -U postgres --format custom oncepost >"backup-$1.dump"); }
restore() {
  compose exec -T postgres pg_restore -U postgres -d postgres --clean --if-exists --create --exit-on-error \
    <"backup-$1.dump"
}
# Sets a variable of the API and the relay for their next start; an empty value takes it away. It is kept in .env.
configure() {
  (
    umask 077
    cd "$oncepost_folder" && touch .env
    grep -v "^$1=" .env >.env.new || true
    if [ -n "$2" ]; then printf "%s='%s'\n" "$1" "$2" >>.env.new; fi
    mv .env.new .env
  )
}
