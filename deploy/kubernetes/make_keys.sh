#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make the keys of a deployment, in base/keys, from where kustomize puts them into the Secret pontil-keys.
#   deploy/kubernetes/make_keys.sh [--out FOLDER]
# PONTIL says how pontil is started (default: this checkout's app.py).
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
out="$here/base/keys"
if [ "${1:-}" = --out ]; then
    out=${2:?--out needs a folder}
fi
read -ra pontil <<<"${PONTIL:-python3 $here/../../app.py}"
umask 077
mkdir -p "$out"
"${pontil[@]}" keys new --out "$out/pontil.keys"
"${pontil[@]}" keys api clients >"$out/api.keys"
"${pontil[@]}" keys api metrics >>"$out/api.keys"
# The bare key, without a line end, for Prometheus.
sed -n 's/^metrics=//p' "$out/api.keys" | tr -d '\n' >"$out/metrics.key"
echo "Give clients the key in $out/api.keys; keep all three files out of version control."
