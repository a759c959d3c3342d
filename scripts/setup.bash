# The scripts beside it source this file; they set `root` to the clone. It makes .venv in the clone on first use, and
# keeps it in step with pyproject.toml and the locks. It installs the outside tools of the tests if that is allowed.
# shellcheck shell=bash

venv="$root/.venv"

say() { printf 'korvet: %s\n' "$*" >&2; }

die() {
  say "$@"
  exit 1
}

# The python for the environment: the one that KORVET_PYTHON names, else one of the path that is new enough and can make
# virtual environments. The first one that was built with profile-guided optimization goes before all others. Without it,
# as pyenv builds Pythons, a front-end takes 1.2 times the processor time for a small request.
find_python() {
  local name path slower='' without_venv=''
  if [ -n "${KORVET_PYTHON:-}" ]; then
    if ! path=$(type -P "$KORVET_PYTHON") || ! is_new_enough "$path" || ! has_venv "$path"; then
      die "KORVET_PYTHON=$KORVET_PYTHON is no Python 3.11 or newer with the venv module: name another one, or unset it"
    fi
    printf '%s\n' "$path"
    return
  fi
  for name in python3.13 python3.12 python3.11 python3 python; do
    while IFS= read -r path; do
      is_new_enough "$path" || continue
      if ! has_venv "$path"; then
        without_venv=$name
      elif is_optimized "$path"; then
        printf '%s\n' "$path"
        return
      else
        slower=${slower:-$path}
      fi
    done <<<"$(type -ap "$name")"
  done
  if [ -n "$slower" ]; then
    printf '%s\n' "$slower"
  elif [ -n "$without_venv" ]; then
    die "$without_venv has no venv module: install it (Debian, Ubuntu: apt install python3-venv) and try again"
  else
    die "Python 3.11 or newer is needed and none was found: install it, or name one in KORVET_PYTHON, and try again"
  fi
}

is_new_enough() {
  [ -n "$1" ] && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

has_venv() {
  "$1" -c 'import venv, ensurepip' 2>/dev/null
}

# A distribution's Python, below /usr, counts as optimized: the options of Debian's do not tell that it is.
is_optimized() {
  "$1" -c '
import sys, sysconfig
options = sysconfig.get_config_var("CONFIG_ARGS") or ""
sys.exit(sys.base_prefix != "/usr" and "--enable-optimizations" not in options)' 2>/dev/null
}

# prepare_environment base|spark|dev: afterwards .venv runs korvet from this clone, with spark also its pipeline, with
# dev all of it with its tests and checks. A stamp is written last, so an interrupted setup is done again; a lock lets
# one of several first uses do the work.
prepare_environment() {
  local kind=$1 stamp
  # A link leads to another clone's environment, which would be emptied for this one.
  [ ! -L "$venv" ] || die "$venv is a symbolic link: remove the link and try again, so that this clone gets its own"
  stamp="$root $(cat "$root"/pyproject.toml "$root"/requirements*.lock | cksum)"
  is_prepared "$kind" "$stamp" && return
  local python
  python=$(find_python) || exit 1
  mkdir -p "$root/.cache" 2>/dev/null && exec 9>"$root/.cache/setup.lock" || die "cannot write to $root: is it yours?"
  "$python" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
  is_prepared "$kind" "$stamp" || build_environment "$python" "$kind" "$stamp"
  exec 9>&-
}

is_prepared() {
  local kind=$1 stamp=$2
  [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.korvet-$kind" 2>/dev/null)" = "$stamp" ]
}

build_environment() {
  local python=$1 kind=$2 stamp=$3 what=$root kinds=("$kind" base) each span='about a minute'
  if [ "$kind" != base ]; then
    what="$root[$kind]" span='some minutes: Spark is large'
  fi
  if [ "$kind" = dev ]; then
    kinds+=(spark)
  fi
  # An environment of another clone or of an interrupted setup is built anew; an outdated one is only updated.
  if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.korvet-root" 2>/dev/null)" = "$root" ]; then
    say "bringing $venv up to date (takes $span)"
  else
    say "setting up $venv with $("$python" --version) (once; takes $span)"
    if [ -e "$venv" ] && [ ! -e "$venv/.korvet-building" ] && [ ! -e "$venv/.korvet-root" ]; then
      die "$venv exists and was not made by this script: move it away and try again"
    fi
    mkdir -p "$venv" && touch "$venv/.korvet-building"
    rm -rf "${venv:?}"/*
    rm -f "$venv"/.korvet-root "$venv"/.korvet-base "$venv"/.korvet-spark "$venv"/.korvet-dev
    "$python" -m venv "$venv" || die "could not make $venv: see the lines above"
    printf '%s\n' "$root" >"$venv/.korvet-root"
    rm -f "$venv/.korvet-building"
  fi
  for each in "${kinds[@]}"; do
    rm -f "$venv/.korvet-$each"
  done
  if [ "$kind" = base ] && [ -z "${KORVET_UNLOCKED:-}" ]; then
    pip_install --require-hashes -r "$root/requirements.lock" -r "$root/requirements-build.lock" ||
      die "could not install what requirements.lock names: see pip's lines above, mend that and try again. If your" \
        "index lacks one of these versions, KORVET_UNLOCKED=1 takes those that it has, whatever their hashes"
    pip_install --no-deps --no-build-isolation --editable "$root" || die "could not install korvet: see pip's lines above"
  else
    pip_install --editable "$what" ||
      die "could not install korvet's dependencies: see pip's lines above, mend that and try again"
  fi
  for each in "${kinds[@]}"; do
    printf '%s\n' "$stamp" >"$venv/.korvet-$each"
  done
}

# Of what pip says on stdout, only large downloads are shown.
pip_install() {
  PIP_USER=0 "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" |
    { grep --line-buffered -o 'Downloading .*[0-9] MB)' || true; } >&2
}

# The commit of the clone if nothing in it is changed, else nothing.
clean_head() {
  [ -n "$(git -C "$root" status --porcelain 2>&1)" ] || git -C "$root" rev-parse HEAD
}

# note_proven COMMIT: every test has passed that began at this commit; .ci/run and scripts/release read the note. It is
# not written if the clone is at another one by now, or if a test lacked a program (tests/support/tools.py).
note_proven() {
  [ -z "$1" ] || [ "$(clean_head)" != "$1" ] || [ -e "$root/.cache/left-out" ] || echo "$1" >"$root/.cache/proven"
}

# need_tools COMMAND:DEBIAN-PACKAGE…: installs missing tools by apt as root (in CI also through sudo), else names them.
need_tools() {
  local pair missing=() packages=() sudo=()
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || { missing+=("${pair%%:*}") && packages+=("${pair#*:}"); }
  done
  if [ ${#missing[@]} -eq 0 ]; then
    return
  fi
  if [ "$(id -u)" != 0 ] && [ -n "${CI:-}" ] && command -v sudo >/dev/null; then
    sudo=(sudo -n)
  elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "not installed: ${missing[*]}; what needs them is skipped here (and fails in CI)"
    return
  fi
  say "installing ${packages[*]}"
  install() {
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  }
  "${sudo[@]}" apt-get update -qq >/dev/null || say "could not read apt's package lists anew; going on with the old ones"
  # If apt cannot install all together, it does one by one: nodejs of another source conflicts with Debian's npm.
  install "${packages[@]}" || for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || install "${pair#*:}" || say "could not install ${pair#*:}"
  done
}
