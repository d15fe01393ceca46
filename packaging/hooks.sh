# What is done around an installation, an upgrade and a removal of any package. Sourced by nobody: scripts/release puts this text, with the names of the
# units filled in, and then hooks/PACKAGE.sh before those of the packages' scripts and of the tarball's, which call the functions. POSIX shell.

on='@ON@'
all='@ALL@'

booted() { [ -d /run/systemd/system ]; }

start_enabled() {
  booted || return 0
  systemctl daemon-reload
  for unit in $on; do
    if systemctl -q is-enabled "$unit" 2>/dev/null; then systemctl start "$unit" || echo "@PACKAGE@: $unit does not start: systemctl status $unit" >&2; fi
  done
}

# The services of this package that run.
running() {
  for unit in $all; do
    case $unit in
    *.service) if systemctl -q is-active "$unit"; then printf ' %s' "$unit"; fi ;;
    esac
  done
}

stop_all() {
  booted || return 0
  if [ "$all" ]; then systemctl stop $all || true; fi
}

# Folders that are left empty, and the links that systemd makes to them. What is in them is the user's.
remove_empty() {
  for folder in "$@"; do
    if [ -L "$folder" ]; then
      [ -e "$folder" ] || rm -f "$folder"
    elif [ -d "$folder" ]; then
      rmdir "$folder" 2>/dev/null || echo "@PACKAGE@: $folder is left, for what is in it" >&2
    fi
  done
}

remove_links_to_units() {
  for unit in $all; do rm -f /etc/systemd/system/*.wants/"$unit"; done
}

# A package without units needs none of these; each of the others has its own.
prepare() { :; }           # what units need before they start
renew() { :; }             # after an upgrade
remove_traces() { :; }     # what the daemons have made, but for what is the user's
remove_names() { :; }      # users and groups
installed() { echo Installed.; }
others='' # programs of other packages that an installation would hide
