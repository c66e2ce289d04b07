# Writes the comparison as a comment of the pull request, or into the comment that it wrote there before.
set -eu
if [ -z "$PULL_REQUEST" ]; then exit 0; fi
mark="<!-- perfhooks compare: $TITLE -->"
body=$RUNNER_TEMP/perfhooks-comment.md
{ echo "$mark"; cat "$MARKDOWN"; } >"$body"
comments=repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments
export mark
write() {
    before=$(gh api --paginate "$comments" --jq '.[] | select(.body | startswith(env.mark)) | .id') || return
    id=$(echo "$before" | head -n 1)
    if [ -n "$id" ]; then
        gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$id" -F "body=@$body"
    else
        gh api --silent --method POST "$comments" -F "body=@$body"
    fi
}
# the token of a pull request from a fork may not write: the summary of the job has it all the same
write || echo "::warning::perfhooks: the comment could not be written; the summary of this job has what it says"
