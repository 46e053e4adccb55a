"""The door of this field: what it answers for the addresses of buckets, servers and hubs, and of what holds files."""

from __future__ import annotations

from datasets.core.doors import DOORS, Door
from fields.remote import address, names, secrets, walking
from fields.remote.limits import HOLDERS, SCHEMES

DOORS.add(
    Door(
        name="remote",
        example="s3://bucket/new",
        schemes=(*SCHEMES, *HOLDERS),
        path=address.as_path,
        local=address.local,
        state=address.state,
        member=names.member,
        is_held=names.is_held,
        plain_name=address.plain_name,
        contents=names.contents,
        matches=address.matches,
        walk=walking.walk,
        nameless=walking.nameless_in,
        read_ahead=address.read_ahead,
        put=address.put,
        without_secrets=secrets.without_secrets,
        remembered=secrets.remembered,
        hidden=secrets.hidden,
        ask_again=address.ask_again,
        work_for=address.work_for,
        escaped=address.escaped,
    )
)
