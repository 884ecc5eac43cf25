"""W&B: offline without a key or a network, and proxies only when the box is ticked."""

from __future__ import annotations

from pathlib import Path

import pytest
from cleanrl_worker.wandb_settings import wandb_settings

RUN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
HERE = Path("/home/run")
KEY = {"WANDB_API_KEY": "k" * 40}


def settings(extras=None, environ=None, reachable=True, **more):
    asked: list[str] = []

    def why_unreachable(address):
        asked.append(address)
        return None if reachable else f"{address} cannot be reached"

    found = wandb_settings(
        RUN, HERE, extras or {}, {"NETRC": "/nowhere", **(environ or {})}, why_unreachable=why_unreachable, **more
    )
    return found, asked


def test_without_a_key_it_is_offline_and_asks_no_question():
    found, asked = settings(project="cleanRL", entity="me")
    assert (found.mode, asked) == ("offline", [])
    assert "no W&B key" in found.reason
    assert found.variables["WANDB_MODE"] == "offline"
    assert found.variables["WANDB_DIR"] == str(HERE)
    assert found.variables["WANDB_RUN_ID"] == RUN
    assert (found.variables["WANDB_PROJECT"], found.variables["WANDB_ENTITY"]) == ("cleanRL", "me")


def test_with_a_key_and_a_network_it_is_online():
    found, asked = settings(environ=KEY)
    assert (found.mode, found.reason) == ("online", "")
    assert asked == ["https://api.wandb.ai"]


def test_without_a_network_it_is_offline_and_says_why():
    found, _ = settings(environ={**KEY, "WANDB_BASE_URL": "http://wandb.example"}, reachable=False)
    assert found.mode == "offline"
    assert "wandb.example cannot be reached" in found.reason


def test_a_login_of_the_user_counts_as_a_key(tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.wandb.ai login user password not-a-real-key\n")
    found, _ = settings(environ={"NETRC": str(netrc)})
    assert found.mode == "online"


def test_what_the_user_disabled_stays_so():
    assert settings(environ={**KEY, "WANDB_MODE": "disabled"})[0].mode == "disabled"
    assert settings(environ={**KEY, "WANDB_MODE": "offline"})[0].mode == "offline"


PROXIES = {
    "WANDB_VPN_HTTPS_PROXY": "http://vpn:1",
    "WANDB_HTTPS_PROXY": "http://own:2",
    "HTTPS_PROXY": "http://general:3",
}


@pytest.mark.parametrize(
    ("form", "missing", "chosen"),
    [
        ("http://form:0", (), "http://form:0"),
        ("", (), "http://vpn:1"),
        ("", ("WANDB_VPN_HTTPS_PROXY",), "http://own:2"),
        ("", ("WANDB_VPN_HTTPS_PROXY", "WANDB_HTTPS_PROXY"), "http://general:3"),
    ],
)
def test_the_first_proxy_that_is_set_is_used_when_the_box_is_ticked(form, missing, chosen):
    environ = {**KEY, **{name: value for name, value in PROXIES.items() if name not in missing}}
    found, asked = settings({"wandb_use_vpn_proxy": True, "wandb_https_proxy": form}, environ)
    assert found.variables["WANDB_HTTPS_PROXY"] == chosen
    assert asked == [chosen]
    assert "WANDB_VPN_HTTPS_PROXY" not in found.apply_to(environ)


def test_without_the_box_no_proxy_of_wandb_is_used():
    found, _ = settings({"wandb_https_proxy": "http://form:0"}, {**KEY, **PROXIES})
    after = found.apply_to(PROXIES)
    assert "WANDB_HTTPS_PROXY" not in after
    assert after["HTTPS_PROXY"] == "http://general:3"  # not ours to take away


def test_a_name_and_a_resume_are_passed_on():
    found, _ = settings({"wandb_run_name": "mine", "wandb_api_key": "s" * 40}, is_resumed=True)
    assert found.variables["WANDB_NAME"] == "mine"
    assert found.variables["WANDB_RESUME"] == "allow"
    assert found.mode == "online"
