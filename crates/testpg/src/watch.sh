# Ends a server and removes its directory, once the test that it belongs to has closed our standard input. The kernel does
# that for a test which is killed, so nothing is left behind either way; Server's Drop does it and waits for us.
#
# Environment: DIRECTORY, the server's own; NAME, its last part, which is on the command line of each of its processes.

trap '' HUP INT TERM
read -r _
postmaster=none

# Sets FOUND to the processes of this server. Their command lines are open to everybody; what else would tell them apart
# (their working directory, their environment) is hidden from root in a container.
find_processes() {
    FOUND=
    for process in /proc/[0-9]*; do
        { read -r command < "$process/comm"; } 2>/dev/null || continue
        case $command in
            postgres | initdb | cp) ;;
            *) continue ;; # somebody may be reading the log
        esac
        ! grep -qs "$NAME" "$process/cmdline" || FOUND="$FOUND ${process#/proc/}"
    done
    [ -n "$FOUND" ]
}

# At once, but in order: killed, it would leave a piece of System V shared memory, and there are only some thousand of them.
if find_processes; then
    kill -CONT $FOUND
    { read -r postmaster < "$DIRECTORY/data/postmaster.pid"; } 2>/dev/null || postmaster=none
    case " $FOUND " in
        *" $postmaster "*) kill -QUIT "$postmaster" ;;
    esac
fi
rounds=0
while [ $rounds -lt 1000 ] && find_processes; do
    # PostgreSQL itself gives its children five seconds.
    [ $rounds -lt 600 ] || kill -KILL $FOUND
    # Without its postmaster nobody else will end them.
    case " $FOUND " in
        *" $postmaster "*) ;;
        *) kill -KILL $FOUND ;;
    esac
    rounds=$((rounds + 1))
    sleep 0.01
done

# It is still there if the postmaster was killed.
shared_memory=$(sed -n '7s/.* //p' "$DIRECTORY/data/postmaster.pid" 2>/dev/null)
[ -z "$shared_memory" ] || ipcrm -m "$shared_memory"

rm -rf "${DIRECTORY:?}"
