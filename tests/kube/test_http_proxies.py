"""Tests of the proxy that an environment names."""

from __future__ import annotations

import pytest

from keepclose.kube.auth.kubeconfig import find_proxy

ENV = {"HTTPS_PROXY": "http://p:3128", "HTTP_PROXY": "plain:80"}


@pytest.mark.parametrize(
    ("url", "no_proxy", "want"),
    [
        pytest.param("https://k8s.example:6443", "", "http://p:3128", id="by scheme"),
        pytest.param("http://k8s.example", "", "http://plain:80", id="a bare name is http"),
        pytest.param("https://localhost:6443", "", "", id="never for localhost"),
        pytest.param("https://127.0.0.1:6443", "", "", id="never for loopback"),
        pytest.param("https://[::1]:6443", "", "", id="never for loopback of IPv6"),
        pytest.param("https://k8s.example", "*", "", id="no proxy for anybody"),
        pytest.param("https://k8s.example", "a, example", "", id="a domain covers what is below"),
        pytest.param("https://k8s.example", ".example", "", id="so with a dot"),
        pytest.param("https://k8s.example", "k8s.example:443", "", id="ports are passed over"),
        pytest.param("https://k8s.example", "s.example", "http://p:3128", id="half a name"),
        pytest.param("https://10.1.2.3", "10.0.0.0/8", "", id="a network"),
        pytest.param("https://10.1.2.3", "10.1.2.3", "", id="an address"),
        pytest.param("https://10.1.2.3", "10.2.0.0/16,example", "http://p:3128", id="another one"),
        pytest.param("https://[fd00::1]", "[fd00::1]", "", id="an address in brackets"),
    ],
)
def test_the_proxy_for_a_server(url: str, no_proxy: str, want: str) -> None:
    """Scheme and exceptions decide."""
    assert find_proxy(url, {**ENV, "NO_PROXY": no_proxy}) == want


def test_lower_case_names_count_too() -> None:
    """Both spellings of the variables are known, and nothing means to go directly."""
    env = {"https_proxy": "http://p", "no_proxy": "b.example"}
    assert find_proxy("https://a.example", env) == "http://p"
    assert find_proxy("https://b.example", env) == ""
    assert find_proxy("https://a.example", {}) == ""
