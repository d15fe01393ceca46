# An upgrade ends no connection: a tunnel goes on as it is until somebody starts it anew.

# The user that holds the key.
prepare() { systemd-sysusers ferretto-tunnel.conf; }

renew() {
  booted || return 0
  systemctl daemon-reload
  running=$(running)
  if [ "$running" ]; then
    echo "ferretto-tunnel: connections go on in the old version. To have the new one, when nobody records: systemctl restart$running" >&2
  fi
}

remove_traces() {
  remove_links_to_units
  rm -rf /run/ferretto-tunnel
}

# Keys that are left belong to the number of the user or its group, which another one would get some day.
remove_names() {
  if [ -d /etc/ferretto-tunnel ] && [ "$(find /etc/ferretto-tunnel -user ferretto-tunnel 2>/dev/null; find /etc/ferretto-tunnel -group ferretto-tunnel 2>/dev/null)" ]; then
    echo 'ferretto-tunnel: the user and the group ferretto-tunnel are left, for files in /etc/ferretto-tunnel belong to them' >&2
    return 0
  fi
  if getent passwd ferretto-tunnel >/dev/null; then userdel ferretto-tunnel || true; fi
  if getent group ferretto-tunnel >/dev/null; then groupdel ferretto-tunnel || true; fi
}

installed() { echo 'Installed. share/doc/ferretto-tunnel/machines.md says how to set up either end.'; }
