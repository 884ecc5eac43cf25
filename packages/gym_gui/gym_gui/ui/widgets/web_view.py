"""A web page inside the window, if QtWebEngine is installed (the optional package PySide6_Addons).

    if web_view.is_installed():
        view = web_view.make_view(parent, failed)        raises WebViewProblem, e.g. when a system library is missing
        view.open("http://127.0.0.1:6006/")

The engine takes 400 MB and a few seconds, so it is loaded when the first page is shown.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import PySide6
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtNetwork import QNetworkProxy
from PySide6.QtWidgets import QWidget

_MODULE = "PySide6.QtWebEngineWidgets"
_FLAGS = "--disable-gpu --log-level=3"
_ZOOM = 0.8
"""Dashboards are designed for a full screen and have half of one here"""
INSTALL = f"{sys.executable} -m pip install PySide6_Addons=={PySide6.__version__}"
"""Its version must match the rest of Qt"""


class WebViewProblem(Exception):
    """Pages cannot be shown in the window; the message is for users."""


class WebView(Protocol):
    """The interface of a view."""

    @property
    def widget(self) -> QWidget: ...

    def open(self, address: str) -> None: ...

    def reload(self) -> None: ...

    def close(self) -> None: ...


def is_installed() -> bool:
    """Return whether the package exists; missing system libraries are noticed only on import."""
    return importlib.util.find_spec(_MODULE) is not None


def make_view(parent: QWidget, failed: Callable[[], Any]) -> WebView:
    """Return a view; the first one loads the engine. `failed` is called when the engine's process exits."""
    # Chromium refuses to run as root inside its sandbox; only local dashboards and W&B are shown.
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
    os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", _FLAGS)
    try:
        widgets = importlib.import_module(_MODULE)
        core = importlib.import_module("PySide6.QtWebEngineCore")
    except ImportError as error:
        raise WebViewProblem(
            f"Pages cannot be shown in the window: {error}. docs/gui/tensorboard.md names the system libraries that "
            "QtWebEngine needs."
        ) from error
    return _EngineView(widgets, core, parent, failed)


def open_in_browser(address: str) -> bool:
    """Open an address in the default browser; return whether there is one."""
    return QDesktopServices.openUrl(QUrl(address))


def use_proxy(address: str) -> None:
    """Load pages through this proxy from now on (empty: directly). Chromium never uses it for loopback."""
    parts = urlsplit(address if "://" in address else f"http://{address}") if address else None
    if parts is None or not parts.hostname:
        QNetworkProxy.setApplicationProxy(QNetworkProxy(QNetworkProxy.ProxyType.NoProxy))
        return
    kinds = QNetworkProxy.ProxyType
    kind = kinds.Socks5Proxy if parts.scheme.startswith("socks") else kinds.HttpProxy
    QNetworkProxy.setApplicationProxy(
        QNetworkProxy(
            kind, parts.hostname, parts.port or 3128, unquote(parts.username or ""), unquote(parts.password or "")
        )
    )


class _EngineView:
    """A QWebEngineView with a profile of its own that stores nothing on disk."""

    def __init__(self, widgets: Any, core: Any, parent: QWidget, failed: Callable[[], Any]) -> None:
        self._view = widgets.QWebEngineView(parent)
        self._view.setObjectName("web_view")
        self._view.setAccessibleName(parent.tr("Web page"))
        profile = core.QWebEngineProfile()  # off the record
        self._page = _quiet_page(core)(profile, self._view)
        profile.setParent(self._page)  # so that the page is deleted first; otherwise Qt warns
        self._page.proxyAuthenticationRequired.connect(_log_in_at_proxy)
        self._page.newWindowRequested.connect(lambda request: open_in_browser(request.requestedUrl().toString()))
        self._page.renderProcessTerminated.connect(lambda _status, _code: failed())
        self._view.setPage(self._page)
        self._view.setZoomFactor(_ZOOM)  # the zoom belongs to the page: set it after the page

    @property
    def widget(self) -> QWidget:
        found: QWidget = self._view
        return found

    def open(self, address: str) -> None:
        self._view.load(QUrl(address))

    def reload(self) -> None:
        self._view.reload()

    def close(self) -> None:
        """Release the engine's memory."""
        self._view.deleteLater()


def _quiet_page(core: Any) -> Any:
    class QuietPage(core.QWebEnginePage):  # type: ignore[misc]  # loaded late
        """Discard the page's console messages."""

        def javaScriptConsoleMessage(self, *_args: object) -> None:
            pass

    return QuietPage


def _log_in_at_proxy(_address: QUrl, authenticator: Any, _proxy: str) -> None:
    proxy = QNetworkProxy.applicationProxy()
    authenticator.setUser(proxy.user())
    authenticator.setPassword(proxy.password())
