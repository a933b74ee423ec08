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
# Prometheus reads /metrics, which no setting limits. Whoever finds this key there gets no answer for it: a prompt and one
# token are more than it may ever ask for, and one other request in 100 minutes is all.
"${pontil[@]}" keys api metrics weight=0.01 requests=1 tokens=1 rate=0.01 token_rate=1 >>"$out/api.keys"
# The bare key, without its settings and a line end.
sed -n 's/^metrics=\([^ ]*\).*/\1/p' "$out/api.keys" | tr -d '\n' >"$out/metrics.key"
echo "Give clients the key in $out/api.keys; keep all three files out of version control."
