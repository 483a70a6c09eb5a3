#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Requests per second of a frontend binary, with mock workers that cost next to nothing: 64-token prompts, 8 tokens out,
# not streamed. Usage: scripts/throughput.sh BINARY [BINARY ...]; several are measured in turns, twice. Needs wrk (Debian: wrk).
set -euo pipefail

command -v wrk >/dev/null || { echo "throughput: wrk is not installed (Debian: apt-get install wrk)" >&2; exit 1; }
[ $# -gt 0 ] || { echo "usage: scripts/throughput.sh BINARY [BINARY ...]" >&2; exit 2; }

work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null || true; rm -rf "$work"' EXIT
cat >"$work/post.lua" <<'LUA'
local words = {}
for i = 1, 64 do words[i] = "w" .. (i + 2) end
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"model":"mock","prompt":"' .. table.concat(words, " ") .. '","max_tokens":8}'
LUA

for round in 1 2; do
    for binary in "$@"; do
        "$binary" serve --mock-workers 2 --mock-speedup 1000 --http-port 0 2>"$work/log" &
        server=$!
        until grep -q ' ready after ' "$work/log"; do
            kill -0 $server || { cat "$work/log" >&2; exit 1; }
            sleep 0.1
        done
        url=$(sed -n 's/^ *listening *\(http[^ ]*\).*/\1/p' "$work/log")
        for clients in 1 64; do
            rate=$(wrk -t1 -c"$clients" -d8s --timeout 20s -s "$work/post.lua" "$url/v1/completions" |
                sed -n 's/^Requests\/sec: *//p')
            printf '%s  round %s  %2s clients  %s requests/s\n' "$binary" "$round" "$clients" "$rate"
        done
        kill $server
        wait $server || true
    done
done
