"""``korvet topics produce``: a record for each line."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from korvet.cli.ground.options import as_json, cluster_options
from korvet.cli.ground.output import say_note, show_json
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.cli.ground.cluster import Cluster
    from korvet.cli.kafka.produce import Producer
    from korvet.cli.records.lines import Parse

_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|([nrt0]))")
_MEANT: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}


def _unescaped(context: click.Context, parameter: click.Parameter, text: str | None) -> bytes | None:
    """A separator as bytes; ``\\t``, ``\\x00`` and the like may be written out."""
    if text == "":
        raise click.BadParameter("it may not be empty")
    if text is None:
        return None
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _MEANT[found[2]], text).encode()


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@click.option("-p", "--partition", type=click.IntRange(0), metavar="N", help="The partition.  [default: by the key]")
@click.option("-k", "--key", metavar="KEY", help="The key of every record.")
@click.option("-K", "--key-separator", callback=_unescaped, metavar="SEP", help="Each line is KEY SEP VALUE.")
@click.option(
    "-D", "--delimiter", default="\\n", callback=_unescaped, metavar="SEP", help="The end of a record.  [default: \\n]"
)
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record. May be given again.",
)
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="Empty keys and values are null: a tombstone.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="The codec of the batches.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="The form of the input; json takes the output of 'topics consume --json'.",
)
@as_json
@cluster_options
def produce(
    topic: str,
    file: BinaryIO,
    partition: int | None,
    key: str | None,
    key_separator: bytes | None,
    delimiter: bytes,
    headers: tuple[str, ...],
    empty_is_null: bool,
    compression: str,
    form: str,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Append a record for each line of a file or of stdin, and wait until it is stored (acks=all).

    Records with equal keys go to one partition, the same as with Java's producers; records without keys go to a random
    one. A record that was sent and not answered is not sent again.

    \b
    Examples:  echo hello | korvet topics produce greetings
               printf 'a:1\\nb:2\\n' | korvet topics produce greetings --key-separator : --header source=shell
    """
    from korvet.cli.kafka.produce import Producer
    from korvet.cli.kafka.records import CODECS
    from korvet.cli.kafka.topics import chosen_partitions
    from korvet.cli.records.lines import line_parser, parse_json

    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude each other")
    if form == "json" and (key_separator or key is not None or headers or empty_is_null):
        raise click.UsageError("with --format json each line has its own key and headers")
    parse: Parse = parse_json
    if form == "lines":
        own_key = None if key is None else os.fsencode(key)
        parse = line_parser(own_key, key_separator, _headers(headers), empty_is_null=empty_is_null)
    with cluster.client() as client:
        chosen = chosen_partitions(client, topic, () if partition is None else (partition,))
        producer = Producer(client, chosen, CODECS[compression])
        _send(producer, file.fileno(), delimiter, parse, partition)
    _show(topic, producer, as_json)


def _headers(pairs: tuple[str, ...]) -> list[tuple[bytes, bytes | None]]:
    headers: list[tuple[bytes, bytes | None]] = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE", param_hint="--header")
        headers.append((os.fsencode(name), os.fsencode(value) if separator else None))
    return headers


def _send(producer: Producer, descriptor: int, delimiter: bytes, parse: Parse, partition: int | None) -> None:
    """Send lines as soon as they can be read.

    :raises KorvetError: with the number of records that are stored.
    """
    from korvet.cli.records.lines import read_lines

    if os.isatty(descriptor):
        say_note("each line is a record; Ctrl-D ends")
    number = 0
    try:
        for lines in read_lines(descriptor, delimiter):
            now_ms = int(time.time() * 1000)
            producer.send((parse(line, number + at, now_ms) for at, line in enumerate(lines, 1)), partition)
            number += len(lines)
    except OSError as error:
        raise KorvetError(f"cannot read further: {error.strerror}; {_stored(producer)}") from None
    except KorvetError as error:
        raise KorvetError(f"{error}; {_stored(producer)}") from None


def _stored(producer: Producer) -> str:
    return "1 record is stored" if producer.sent == 1 else f"{producer.sent} records are stored"


def _show(topic: str, producer: Producer, as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "topic": topic,
                "records": producer.sent,
                "partitions": [
                    {
                        "partition": partition,
                        "records": written.records,
                        "first_offset": written.first_offset,
                        "last_offset": written.last_offset,
                    }
                    for partition, written in sorted(producer.written.items())
                ],
            }
        )
    else:
        click.echo(f"produced {producer.sent} record{'' if producer.sent == 1 else 's'} to topic {topic}")
