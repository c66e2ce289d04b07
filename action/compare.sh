# Compares a command with itself at another revision, or runs. What it says goes into the summary of the job and into a file for the comment; the exit code, which
# says whether it is slower, into an output: the comment is written before the job fails.
set -eu
markdown=$RUNNER_TEMP/perfhooks.md
set -- --fail-if-slower "$BY" --format markdown
if [ "$FAIL_IF_UNDECIDED" = true ]; then set -- "$@" --fail-if-undecided; fi
code=0
if [ -n "$RUN" ]; then
    git fetch --quiet --depth 1 origin "$AT"
    perfhooks compare --run-at FETCH_HEAD "$RUN" -- "$RUN" --seconds "$LONGEST" "$@" >"$markdown" || code=$?
else
    # paths are separated by spaces, and may be patterns
    # shellcheck disable=SC2086
    perfhooks compare $BASE -- $NEW --out "$PAGE" "$@" >"$markdown" || code=$?
fi
case $code in
0 | 3 | 4) ;;
*) exit "$code" ;;
esac
cat "$markdown" >>"$GITHUB_STEP_SUMMARY"
echo "code=$code" >>"$GITHUB_OUTPUT"
echo "markdown=$markdown" >>"$GITHUB_OUTPUT"
