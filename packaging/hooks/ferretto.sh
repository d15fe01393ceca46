# An upgrade ends no recording: daemons are started anew only if nobody records, and go on as they are otherwise.

others=/usr/bin/traced

# The group and the folder of the sockets.
prepare() {
  systemd-sysusers ferretto.conf
  if booted; then systemd-tmpfiles --create ferretto.conf || true; fi
}

# Whether somebody records, or may do so.
records() {
  systemctl -q is-active traced.service || return 1
  ! PERFETTO_CONSUMER_SOCK_NAME=/run/perfetto/traced-consumer.sock timeout 10 @BIN@/ferretto list sessions --json 2>/dev/null | tr -d ' \n' | grep -q '"sessions":\[\]'
}

renew() {
  booted || return 0
  systemctl daemon-reload
  running=$(running)
  if [ -z "$running" ]; then
    return 0
  elif records; then
    echo "ferretto: somebody records, so the daemons go on as they are. To have the new version, afterwards: systemctl restart$running" >&2
  else
    # One after the other would have producers look for a service that is away.
    systemctl try-restart $running || echo "ferretto: not all of these have started again:$running" >&2
  fi
}

# But for recordings.
remove_traces() {
  rm -rf /run/perfetto /run/ferretto /run/ferretto-recorder
  # The recorder's lock and counters.
  rm -f /var/lib/private/ferretto/recorder/.lock /var/lib/private/ferretto/recorder/state.json
  remove_links_to_units
  remove_empty /var/lib/private/traced /var/lib/traced /var/lib/private/ferretto/recorder /var/lib/ferretto/recorder
  # Made for the uploader, which may be there on its own. Then these are not empty.
  rmdir /var/lib/private/ferretto/upload /var/lib/private/ferretto 2>/dev/null || true
  for link in /var/lib/ferretto/upload /var/lib/ferretto; do
    if [ -L "$link" ] && [ ! -e "$link" ]; then rm -f "$link"; elif [ -d "$link" ]; then rmdir "$link" 2>/dev/null || true; fi
  done
}

# No file belongs to the group, and its members shall not find themselves in it again after another installation.
remove_names() {
  if getent group ferretto >/dev/null; then groupdel ferretto || true; fi
}

installed() { echo 'Installed. Members of the group ferretto can record: usermod -aG ferretto USER'; }
