# docker build -t shardmill . && docker run --rm -v "$PWD:/data" shardmill prepare book.txt -o tokens/
# `make docker-steps` runs the same steps where there is no Docker.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY constraints.txt /wheels/
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -c /wheels/constraints.txt "$(echo /wheels/shardmill-*.whl)[hub,s3,gcs]" && rm -rf /wheels
# Any user may run it: docker run --user "$(id -u)" writes files that belong to you.
RUN useradd --create-home mill && mkdir -p /data /cache && chmod 1777 /data /cache
ENV XDG_CACHE_HOME=/cache PYTHONUNBUFFERED=1
USER mill
WORKDIR /data
ENTRYPOINT ["shardmill"]
