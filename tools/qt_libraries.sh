#!/usr/bin/env bash
# The system libraries that Qt's window needs; with --tests also the X server without a screen that its tests use, with
# --webengine what QtWebEngine (pages inside the window, requirements/webengine.txt) needs.
# Installs what is missing where that is possible (root on Debian or Ubuntu); else names it in one line and fails.
set -euo pipefail

# What is looked for : the Debian package that brings it
needed=(
  libglib-2.0.so.0:libglib2.0-0 libGL.so.1:libgl1 libEGL.so.1:libegl1 libfontconfig.so.1:libfontconfig1
  libdbus-1.so.3:libdbus-1-3 libxkbcommon.so.0:libxkbcommon0 libxcb-cursor.so.0:libxcb-cursor0
  libxcb-icccm.so.4:libxcb-icccm4 libxcb-keysyms.so.1:libxcb-keysyms1 libxcb-image.so.0:libxcb-image0
  libxcb-render-util.so.0:libxcb-render-util0 libxcb-randr.so.0:libxcb-randr0 libxcb-shape.so.0:libxcb-shape0
  libxcb-xkb.so.1:libxcb-xkb1 libxkbcommon-x11.so.0:libxkbcommon-x11-0 libX11-xcb.so.1:libx11-xcb1
)
if [[ "${1:-}" == --webengine ]]; then
  needed+=(
    libnss3.so:libnss3 libasound.so.2:libasound2 libXcomposite.so.1:libxcomposite1 libXdamage.so.1:libxdamage1
    libXrandr.so.2:libxrandr2 libXtst.so.6:libxtst6 libxkbfile.so.1:libxkbfile1 libgbm.so.1:libgbm1
    libxcb-dri3.so.0:libxcb-dri3-0
  )
fi
known="$(PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null || true)"
missing=()
for pair in "${needed[@]}"; do
  [[ "$known" == *"${pair%%:*} "* ]] || missing+=("${pair#*:}")
done
if [[ "${1:-}" == --tests ]] && ! command -v Xvfb > /dev/null; then
  missing+=(xvfb)
fi
if (( ${#missing[@]} == 0 )); then
  exit 0
fi

if (( EUID == 0 )) && command -v apt-get > /dev/null; then
  echo "Installing system libraries of Qt: ${missing[*]} …"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } > /dev/null && exit 0
  echo "apt-get could not install them" >&2
fi
if command -v apt-get > /dev/null || ! command -v dnf > /dev/null; then
  echo "Qt needs system libraries. As root: apt-get install -y --no-install-recommends ${missing[*]}" >&2
else
  echo "Qt needs system libraries; the Debian packages ${missing[*]} have counterparts in your distribution" >&2
fi
exit 1
