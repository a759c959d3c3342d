# The base of both stages: Python 3.11 or newer, with its venv module.
ARG BASE=docker.io/library/python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
# The dependencies are a layer of their own, which changes of the code leave as it is.
COPY requirements.lock requirements-build.lock ./
# A pip.conf that names an index of yours: --secret id=pip,src=pip.conf
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    for each in korvet build; do python3 -m venv /opt/$each || exit 1; done \
 && pip="-m pip install --no-cache-dir --disable-pip-version-check --quiet --require-hashes" \
 && /opt/korvet/bin/python $pip -r requirements.lock \
 && /opt/build/bin/python $pip -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY korvet korvet
COPY lua lua
COPY pyspark_korvet pyspark_korvet
RUN /opt/build/bin/python -m hatchling build -t wheel -d dist \
 && /opt/korvet/bin/python -m pip install --no-cache-dir --disable-pip-version-check --quiet --no-index --no-deps dist/* \
 && /opt/korvet/bin/korvet --version \
 && rm -rf /opt/korvet/lib/python3*/site-packages/pip* /opt/korvet/bin/pip*

FROM ${BASE}
COPY --from=build /opt/korvet /opt/korvet
COPY deploy/docker/korvet.toml /etc/korvet/korvet.toml
RUN echo 'korvet:x:10001:10001:Korvet:/data:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'korvet:x:10001:' >> /etc/group \
 && mkdir /data \
 && chown 10001:10001 /data
ENV PATH=/opt/korvet/bin:$PATH \
    KORVET_CONFIG=/etc/korvet/korvet.toml \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 9092 9464
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 \
    CMD ["python3", "-Ic", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/readyz', timeout=5)"]
ENTRYPOINT ["/opt/korvet/bin/korvet"]
CMD ["serve"]
