# An image for machines with and without a GPU: on Linux, pip's torch brings CUDA's libraries.
# CUDA's own image is a base too: --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04. Of a base that has torch from
# 2.11 on, that one is kept.
ARG BASE=python:3.12-slim
FROM ${BASE}

# Installing compiles the C loops, and Triton its launchers.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && { command -v python3 || apt-get install -y --no-install-recommends python3 python3-dev python3-venv; } \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv --system-site-packages /opt/venv
ENV PATH=/opt/venv/bin:$PATH

WORKDIR /opt/voxelocity
COPY packages packages
ARG EXTRAS=formats,tune,tensorboard,runtimes
RUN pip install --no-cache-dir \
    ./packages/voxelocity-observe "./packages/voxelocity[${EXTRAS}]" ./packages/voxelocity-lab

# Prepared cases: a volume on /cache keeps them.
ENV XDG_CACHE_HOME=/cache
RUN mkdir -p /cache && chmod 1777 /cache
VOLUME /cache
WORKDIR /data
ENTRYPOINT ["voxelocity"]
CMD ["--help"]
