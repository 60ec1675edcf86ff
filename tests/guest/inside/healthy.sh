# Sourced by tests whose copies are compared: one that was slow, or away, is filled with what it missed. TRINE and fail are the caller's.
healthy() { # until every copy of every volume is in sync
    local until=$((SECONDS + 300))
    until "$TRINE" status 2>/dev/null | awk 'NR == 1 && /^healthy/ { well = 1 } END { exit !well }'; do
        [ "$SECONDS" -lt "$until" ] || fail "the copies do not come in sync: $("$TRINE" status 2>&1)"
        sleep 0.2
    done
}
