#!/usr/bin/env bash
# Puts a report on its pull request: one comment, found again by its marker line
# and updated. A pull request on which nothing changed gets no comment, but one
# that is there is updated.
#
#   comment.sh DIR
#
# DIR holds comment.md, report.json and pull-request, as compare.sh left them. A
# fork's code wrote them, so nothing in them is trusted: the number must be a
# number, and the head of that pull request must be the commit that the workflow
# ran on.
#
# Environment: GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_TOKEN (with
# pull-requests: write), HEAD_SHA, and BOT (who comments; default github-actions[bot]).
# Needs curl and jq.
set -euo pipefail

dir=${1:?give the directory of the report}
: "${GITHUB_API_URL:?}" "${GITHUB_REPOSITORY:?}" "${GITHUB_TOKEN:?}" "${HEAD_SHA:?}"
bot=${BOT:-github-actions[bot]}
repo="$GITHUB_API_URL/repos/$GITHUB_REPOSITORY"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

refuse() {
	echo "comment.sh: $*" >&2
	exit 2
}

# api METHOD URL [BODY-FILE] writes the answer to $work/answer. The token goes in
# by a file and not by an argument, which other processes could read.
printf 'header = "Authorization: Bearer %s"\n' "$GITHUB_TOKEN" >"$work/auth"
api() {
	curl --silent --show-error --fail-with-body --max-time 60 --retry 3 --config "$work/auth" \
		--header 'Accept: application/vnd.github+json' --header 'X-GitHub-Api-Version: 2022-11-28' \
		--request "$1" ${3:+--header 'Content-Type: application/json' --data-binary "@$3"} --output "$work/answer" "$2"
}

for file in comment.md report.json pull-request; do
	[[ -f "$dir/$file" && ! -L "$dir/$file" ]] || refuse "$dir/$file: no such file"
done
number=$(head -c 32 "$dir/pull-request" | tr -d '[:space:]')
[[ "$number" =~ ^[1-9][0-9]{0,9}$ ]] || refuse "pull-request: not a number"
# Characters, as the service counts them.
size=$(jq --raw-input --slurp 'length' "$dir/comment.md")
((size <= 65536)) || refuse "comment.md: $size characters, at most 65536 fit"
marker=$(head -n 1 "$dir/comment.md")
[[ "$marker" =~ ^'<!-- benchrun:report v=1 suite='[^\<\>]*' -->'$ ]] || refuse "comment.md: no marker in its first line"

api GET "$repo/pulls/$number"
head=$(jq --raw-output '.head.sha' "$work/answer")
if [[ "$head" != "$HEAD_SHA" ]]; then
	echo "pull request $number is at $head, the report is of $HEAD_SHA: nothing to do"
	exit 0
fi

id=
for ((page = 1; ; page++)); do
	api GET "$repo/issues/$number/comments?per_page=100&page=$page"
	id=$(jq --raw-output --arg marker "$marker" --arg bot "$bot" \
		'map(select(.user.login == $bot and ((.body // "") | split("\n") | first // "" | rtrimstr("\r")) == $marker)) | first | .id // empty' "$work/answer")
	[[ -z "$id" ]] || break
	(($(jq length "$work/answer") == 100)) || break
done

changed=$(jq '.verdict != "ok" or ([.rows[]? | select(.verdict != "OK" and .verdict != "UNCHANGED")] | length) > 0' "$dir/report.json")
if [[ -z "$id" && "$changed" == false ]]; then
	echo "nothing changed: no comment"
	exit 0
fi
jq --null-input --rawfile body "$dir/comment.md" '{body: $body}' >"$work/body"
if [[ -n "$id" ]]; then
	api PATCH "$repo/issues/comments/$id" "$work/body"
	echo "updated comment $id"
else
	api POST "$repo/issues/$number/comments" "$work/body"
	echo "commented on pull request $number"
fi
