"""Delta import by content synchronisation (RFC 4533): one refresh of each base since a cookie.

The server must list deletions, from a session log. If it lists what is present instead, the deletions are unknown here
and the watermark counts as lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenuto_identity.connectors.contract import ConnectorError, ReadEvent, ReadScope, Watermark, WatermarkLost
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.delta import accesslog
from tenuto_identity.connectors.ldap.delta.accesslog import Changes
from tenuto_identity.connectors.ldap.directory import Directory, check_complete
from tenuto_identity.connectors.ldap.full_import import DirectoryReader
from tenuto_identity.connectors.ldap.protocol import controls
from tenuto_identity.connectors.ldap.protocol.client import Code, Scope, Search
from tenuto_identity.connectors.ldap.settings import DeltaMethod


def has_context_csn(directory: Directory) -> bool:
    """Return whether every base has a provider of content synchronisation."""
    return all(directory.context_csn(base) for base in directory.bases)


class SyncreplSource:
    """Content synchronisation of OpenLDAP, whose cookies are made of contextCSNs."""

    def watermark(self, directory: Directory, scope: ReadScope) -> Watermark:
        cookies: dict[str, str] = {}
        for base in directory.bases:
            found = directory.context_csn(base)
            if not found:
                raise ConnectorError("delta", f"{base!r} has no contextCSN: syncprov is not set up, or not readable")
            cookies[base] = f"rid=000,csn={';'.join(found)}"
        return {"method": DeltaMethod.SYNCREPL.value, "cookies": cookies}

    def read(self, reader: DirectoryReader, since: Watermark) -> Iterator[ReadEvent]:
        directory = reader.directory
        reader.check_bases(since["cookies"])
        changes = Changes()
        for base, cookie in since["cookies"].items():
            _refresh(directory, base, cookie, changes)
        count = 0
        for event in accesslog.resolve(reader, changes):
            count += 1
            yield event
        yield reader.complete(count, is_delta=True, may_have_moved_containers=changes.has_moved_containers)


def _refresh(directory: Directory, base: str, cookie: str, changes: Changes) -> None:
    """Collect the changes below a base. Their current state is read afterwards, as for the log of changes."""
    search = Search(base, Scope.SUBTREE, filters.EVERYTHING, ("1.1",), (controls.sync_request(cookie),))
    reply = directory.request(directory.limited(search))
    if reply.code == Code.SYNC_REFRESH_REQUIRED:
        raise WatermarkLost(f"the server does not know the watermark any more: {reply.describe()}")
    check_complete(reply, search)
    is_present_phase = False
    deleted: dict[str, None] = {}
    for name, value in reply.intermediates:
        if name == controls.SYNC_INFO:
            info = controls.sync_info(value)
            is_present_phase |= info.is_present_phase
            deleted.update(dict.fromkeys(info.deleted))
    for entry in reply.entries:
        state, identifier = controls.sync_state(entry.controls)
        if state is controls.SyncState.DELETE:
            deleted.setdefault(identifier)
        elif state is controls.SyncState.PRESENT:
            is_present_phase = True
        else:
            changes.changed.setdefault(identifier)
    changes.deleted.update(deleted)
    # A refresh does not say whether an entry was renamed, or moved out of the base; its children were then, too.
    changes.renamed.update(dict.fromkeys((*changes.changed, *changes.deleted), ""))
    if is_present_phase or not controls.sync_done(reply.controls).has_deletes:
        raise WatermarkLost(
            f"the server cannot list the deletions below {base!r} since the watermark; enlarge syncprov-sessionlog"
        )
