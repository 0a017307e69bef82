#!/usr/bin/env bash
# Installs this package, editable, into a virtual environment: with uv, which takes a tenth of pip's time, or with pip where uv cannot
# be had or cannot find a package. Modules are compiled when they are first imported: most of them never are.
# Usage: install.sh VENV [EXTRA]     VENV is there already.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: $0 VENV [EXTRA]" >&2; exit 2; }
venv=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$venv/bin/python
what=.${2:+[$2]}
pip=("$python" -m pip --quiet --quiet --disable-pip-version-check)

# uv does not read pip's configuration: packages must come from where the machine's owner wants them from.
export UV_NATIVE_TLS=true UV_SYSTEM_CERTS=true # trust what the machine trusts; the second name is the newer one
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] && index=$("$python" -m pip config get global.index-url 2>/dev/null || printenv PIP_INDEX_URL); then
  export UV_DEFAULT_INDEX=$index
fi

"${pip[@]}" install --no-compile 'uv>=0.5' 2>/dev/null && "$venv/bin/uv" pip install --quiet --python "$python" --editable "$what" 2>/dev/null && exit
"${pip[@]}" install --no-compile --editable "$what"
