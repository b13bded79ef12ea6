#!/usr/bin/env bash
# Commits what a validation run added to the published record and pushes it; if
# somebody else pushed meanwhile, it is put on top of that and tried again.
#
# Environment: RECORD (the directory, reports/validation), BRANCH.
set -euo pipefail

: "${RECORD:?}" "${BRANCH:?}"
git add -- "$RECORD"
if git diff --cached --quiet; then
	echo "the run added nothing to $RECORD" >&2
	exit 1
fi
git -c user.name='github-actions[bot]' -c user.email='41898282+github-actions[bot]@users.noreply.github.com' \
	commit --quiet --message "reports/validation: one more night"
for try in 1 2 3; do
	if git push --quiet origin "HEAD:$BRANCH"; then
		exit 0
	fi
	echo "push $try refused: somebody was faster" >&2
	# Lines are only ever appended, so both sides' are kept.
	git fetch --quiet origin "$BRANCH"
	git -c user.name='github-actions[bot]' -c user.email='41898282+github-actions[bot]@users.noreply.github.com' \
		-c merge.renames=false rebase --quiet FETCH_HEAD
done
exit 1
