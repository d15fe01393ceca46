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

# Keys that are left belong to the user's number, which another user would get some day.
remove_names() {
  if [ -d /etc/ferretto-tunnel ] && [ "$(find /etc/ferretto-tunnel -user ferretto-tunnel 2>/dev/null)" ]; then
    echo 'ferretto-tunnel: the user ferretto-tunnel is left, for it has keys in /etc/ferretto-tunnel' >&2
    return 0
  fi
  if getent passwd ferretto-tunnel >/dev/null; then userdel ferretto-tunnel || true; fi
  if getent group ferretto-tunnel >/dev/null; then groupdel ferretto-tunnel || true; fi
}

installed() { echo 'Installed. share/doc/ferretto-tunnel/machines.md says how to set up either end.'; }
