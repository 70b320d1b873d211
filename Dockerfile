# The server and the worker of Refold.  `compose.yaml` runs both with PostgreSQL.
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
RUN python -m venv /opt/refold
COPY requirements/image.txt requirements/image.txt
RUN /opt/refold/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY tools/package_metadata.py tools/package_metadata.py
COPY refold refold
RUN /opt/refold/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Refold" \
    org.opencontainers.image.licenses="Apache-2.0"
# The folder for keys and anchors; a volume gets its owner.
RUN useradd --system --uid 10001 --home-dir /var/lib/refold --create-home refold \
    && chmod 700 /var/lib/refold
COPY --from=build /opt/refold /opt/refold
ENV PATH=/opt/refold/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    REFOLD_HOME=/var/lib/refold
USER refold
WORKDIR /var/lib/refold
EXPOSE 8765
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8765/health')"]
ENTRYPOINT ["refold"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8765"]
