#!/usr/bin/env bash
# `canary judge` for a CI job: options come from CANARY_* variables, the exit code is the
# command's own. Where GitHub's variables are set, the verdict becomes the step summary,
# annotations and outputs.
set -uo pipefail

out=${CANARY_OUT:-canary-verdict}
rm -rf -- "$out/verdict.json"  # of an earlier run: no verdict of ours

arguments=(judge "--out=$out")
option() { [ -z "$2" ] || arguments+=("--$1=$2"); }
option baseline "${CANARY_BASELINE:-}"
option canary "${CANARY_CANARY:-}"
option policy "${CANARY_POLICY:-}"
option noise-floor "${CANARY_NOISE_FLOOR:-}"
option on-inconclusive "${CANARY_ON_INCONCLUSIVE:-}"
option prometheus "${CANARY_PROMETHEUS:-}"
option baseline-selector "${CANARY_BASELINE_SELECTOR:-}"
option canary-selector "${CANARY_CANARY_SELECTOR:-}"
option from "${CANARY_FROM:-}"
option to "${CANARY_TO:-}"
option queries "${CANARY_QUERIES:-}"

canary "${arguments[@]}"
code=$?

verdict=
if [ -f "$out/verdict.json" ]; then
  verdict=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"])' \
    "$out/verdict.json") || verdict=
fi
if [ -n "${GITHUB_ACTIONS:-}" ]; then
  if [ -n "$verdict" ]; then
    cat -- "$out/annotations.txt"
  else
    echo "::error title=canary::nothing was judged (exit code $code), see the log"
  fi
fi
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
  if [ -n "$verdict" ]; then
    cat -- "$out/summary.md" >>"$GITHUB_STEP_SUMMARY"
  else
    echo "## canary: nothing was judged (exit code $code)" >>"$GITHUB_STEP_SUMMARY"
  fi
fi
if [ -n "${GITHUB_OUTPUT:-}" ]; then
  printf 'verdict=%s\nexit-code=%s\n' "$verdict" "$code" >>"$GITHUB_OUTPUT"
fi

# Going on without a verdict would be the worst of all ends.
if [ "$code" -eq 0 ] && [ -z "$verdict" ]; then
  code=4
fi
exit "$code"
