"""Renewals come in time, and what is lost is told."""

from __future__ import annotations

import threading

import pytest

from chaos.errors import AgentError, HostUnreachable
from chaos.hosts.lease import Lease
from chaos.hosts.link import Renewed

TTL_S = 0.3


class FakeAgent:
    """Renews, or fails as told; time passes by itself."""

    name = "host-3"

    def __init__(self, *errors, failed=None):
        self.errors = list(errors)
        self.failed = failed or {}
        self.asked = []
        self.renewed = threading.Event()

    def renew(self, ttl_s, *, timeout_s):
        self.asked.append((ttl_s, timeout_s))
        if self.errors:
            error = self.errors[0]
            if len(self.errors) > 1:
                self.errors.pop(0)
            if error is not None:
                raise error
        self.renewed.set()
        return Renewed(expires_in_s=ttl_s, failed=self.failed)


def late():
    return HostUnreachable(host="host-3", op="renew", reason="no answer")


@pytest.fixture
def lease_of():
    leases = []

    def make(agent, **options):
        leases.append(Lease(agent, ttl_s=TTL_S, **options).start())
        return leases[-1]

    yield make
    for lease in leases:
        lease.close()


def test_a_lease_is_renewed_three_times_a_ttl(lease_of, kit):
    agent = FakeAgent()
    lease = lease_of(agent)

    assert kit.within(15, lambda: lease.renewals >= 4)
    assert agent.asked[0] == (TTL_S, pytest.approx(TTL_S / 3))
    assert lease.lost == ""


def test_a_closed_lease_renews_no_more_and_is_not_lost(lease_of, kit):
    told = []
    agent = FakeAgent()
    lease = lease_of(agent, on_lost=told.append)
    assert agent.renewed.wait(15)
    lease.close()
    lease.close()
    count = len(agent.asked)

    assert not kit.within(TTL_S, lambda: len(agent.asked) > count)
    assert (lease.lost, told) == ("", [])


def test_a_host_that_is_silent_for_a_ttl_is_lost_and_told_once(lease_of, kit):
    told = []
    agent = FakeAgent(None, late())
    lease = lease_of(agent, on_lost=told.append)

    assert kit.within(15, lambda: told)
    assert told == [lease.lost]
    assert told == ["host host-3 does not answer to renew: no answer"]
    assert lease.renewals == 1


def test_a_renewal_that_fails_once_is_made_up_for(lease_of, kit):
    agent = FakeAgent(late(), None)
    lease = lease_of(agent)

    assert kit.within(15, lambda: lease.renewals >= 2)
    assert lease.lost == ""


@pytest.mark.parametrize(
    "error",
    [
        HostUnreachable(host="h", op="renew", reason="it went", gone=True),
        AgentError(host="h", op="renew", reason="the agent is ending: it went"),
    ],
)
def test_an_agent_that_ends_is_lost_at_once(lease_of, kit, error):
    told = []
    agent = FakeAgent(error)
    lease_of(agent, on_lost=told.append)

    assert kit.within(15, lambda: told)
    assert "it went" in told[0]
    assert len(agent.asked) == 1


def test_faults_whose_renewal_fails_are_named(lease_of, kit):
    lease = lease_of(FakeAgent(failed={"cut": "step 1: nft: exit 1"}))

    assert kit.within(15, lambda: lease.failed == {"cut": "step 1: nft: exit 1"})


@pytest.mark.slow
def test_a_real_agent_lives_while_its_lease_is_kept_and_no_longer(fleet, kit):
    link = fleet.agent(ttl_s=0.6)
    lease = Lease(link, ttl_s=0.6).start()
    alive = not kit.within(1.5, lambda: lease.lost)
    lease.close()

    assert alive
    assert kit.within(15, lambda: kit.ended(link.connector.pid))


def test_the_loss_of_a_real_agent_is_noticed(fleet, kit):
    told = []
    link = fleet.agent(ttl_s=1.0)
    lease = Lease(link, ttl_s=1.0, on_lost=told.append).start()
    kit.kill(link.connector.pid)

    assert kit.within(15, lambda: told)
    lease.close()
