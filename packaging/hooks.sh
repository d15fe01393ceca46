# What is done around an installation, an upgrade and a removal. Sourced by nobody: scripts/release puts this text, with the names of the units
# filled in, before those of the packages' scripts and of the tarball's, which call the functions. POSIX shell.
#
# An upgrade ends no recording: daemons are started anew only if nobody records, and go on as they are otherwise.

on='@ON@'
all='@ALL@'

booted() { [ -d /run/systemd/system ]; }

# The group and the folder of the sockets, which units need before they start.
make_group_and_folder() {
  systemd-sysusers ferretto.conf
  if booted; then systemd-tmpfiles --create ferretto.conf || true; fi
}

start_enabled() {
  booted || return 0
  systemctl daemon-reload
  for unit in $on; do
    if systemctl -q is-enabled "$unit" 2>/dev/null; then systemctl start "$unit" || echo "ferretto: $unit does not start: systemctl status $unit" >&2; fi
  done
}

# Whether somebody records, or may do so.
records() {
  systemctl -q is-active traced.service || return 1
  ! PERFETTO_CONSUMER_SOCK_NAME=/run/perfetto/traced-consumer.sock timeout 10 @BIN@/ferretto list sessions --json 2>/dev/null | tr -d ' \n' | grep -q '"sessions":\[\]'
}

restart_unless_recording() {
  booted || return 0
  systemctl daemon-reload
  running=
  for unit in $all; do
    case $unit in
    *.service) if systemctl -q is-active "$unit"; then running="$running $unit"; fi ;;
    esac
  done
  if [ -z "$running" ]; then
    return 0
  elif records; then
    echo "ferretto: somebody records, so the daemons go on as they are. To have the new version, afterwards: systemctl restart$running" >&2
  else
    # One after the other would have producers look for a service that is away.
    systemctl try-restart $running || echo "ferretto: not all of these have started again:$running" >&2
  fi
}

stop_all() {
  booted || return 0
  systemctl stop $all || true
}

# What the daemons have made, but for recordings.
remove_traces_of_running() {
  rm -rf /run/perfetto /run/ferretto /run/ferretto-recorder
  # The recorder's lock and counters.
  rm -f /var/lib/private/ferretto/recorder/.lock /var/lib/private/ferretto/recorder/state.json
  for unit in $all; do rm -f /etc/systemd/system/*.wants/"$unit"; done
  # Empty folders, and the links that systemd makes to them. Recordings are the user's.
  for folder in /var/lib/private/traced /var/lib/traced /var/lib/private/ferretto/recorder /var/lib/private/ferretto /var/lib/ferretto/recorder /var/lib/ferretto; do
    if [ -L "$folder" ]; then
      [ -e "$folder" ] || rm -f "$folder"
    elif [ -d "$folder" ]; then
      rmdir "$folder" 2>/dev/null || echo "ferretto: $folder is left, for what was recorded there" >&2
    fi
  done
}

# No file belongs to the group, and its members shall not find themselves in it again after another installation.
remove_group() {
  if getent group ferretto >/dev/null; then groupdel ferretto || true; fi
}
