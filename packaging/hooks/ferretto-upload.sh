# It may be killed at any moment, and what it remembers it can find out again.

renew() {
  booted || return 0
  systemctl daemon-reload
  running=$(running)
  if [ "$running" ]; then systemctl try-restart $running || echo "ferretto-upload: it has not started again: systemctl status ferretto-upload" >&2; fi
}

remove_traces() {
  remove_links_to_units
  rm -f /var/lib/private/ferretto/upload/.lock /var/lib/private/ferretto/upload/state.json
  remove_empty /var/lib/private/ferretto/upload /var/lib/ferretto/upload
  # The recorder's are beside it, if that is there.
  rmdir /var/lib/private/ferretto /var/lib/ferretto 2>/dev/null || true
}

installed() { echo 'Installed. [upload] in /etc/ferretto/recorder.toml says where to: then systemctl enable --now ferretto-upload'; }
