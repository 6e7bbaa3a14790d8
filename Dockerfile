# Builds the images `serve` (the default target), `--target train`, and `--target ray` and `--target spark`, which are `train`
# with an engine.
# Serving without PyTorch: --build-arg SERVE=slim.
# NVIDIA GPUs: --build-arg SERVE=cuda --build-arg TRAIN=cuda-train.
# The base image must have pip and Python 3.11. Pin it by digest with --build-arg BASE_IMAGE=python@sha256:…
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS packages
ARG SERVE=serve
# Index of PyTorch's CPU builds, which is used if pip's default index has none.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv --without-pip /opt/ranker
COPY requirements/*.lock /src/requirements/
RUN install="pip --python /opt/ranker/bin/python install --no-cache-dir --no-deps --require-hashes" \
    && lock=/src/requirements/${SERVE}.lock && { $install -r $lock || $install -r $lock --extra-index-url "${TORCH_INDEX}"; }
WORKDIR /src
COPY . .
RUN pip --python /opt/ranker/bin/python install --no-cache-dir --no-deps --no-build-isolation .

FROM packages AS serve-packages
RUN deploy/remove-unused /opt/ranker/lib/python3.11/site-packages \
    && if [ -d /opt/ranker/lib/python3.11/site-packages/torch ]; then \
         /opt/ranker/bin/python -c "import service.backends.select, ranking.frozen.graph"; \
       fi \
    && /opt/ranker/bin/python -c "import service.main, pipelines.cli.main"

FROM packages AS train-packages
ARG TRAIN=train
RUN pip --python /opt/ranker/bin/python install --no-cache-dir --no-deps --require-hashes -r /src/requirements/${TRAIN}.lock \
    && deploy/remove-unused /opt/ranker/lib/python3.11/site-packages \
    && /opt/ranker/bin/python -c "import pipelines.jobs.train"

FROM train-packages AS ray-packages
RUN pip --python /opt/ranker/bin/python install --no-cache-dir --no-deps --require-hashes -r /src/requirements/engines/ray.lock \
    && /opt/ranker/bin/ray --version

FROM train-packages AS spark-packages
RUN pip --python /opt/ranker/bin/python install --no-cache-dir --no-deps --require-hashes -r /src/requirements/engines/spark.lock

FROM ${BASE_IMAGE} AS ranker
ARG REVISION
LABEL org.opencontainers.image.title="DSelect Ranker" \
      org.opencontainers.image.description="A multi-task recommender ranker: candidates in, ranked candidates out" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# A new volume takes the owner of its mount point.
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin ranker \
    && install -d -o ranker -g ranker /repository /data
# Without ORT_DISABLE_TELEMETRY, ONNX Runtime reports usage data to its vendor.
ENV PATH=/opt/ranker/bin:$PATH \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["ranker"]

FROM ranker AS train
COPY --from=train-packages /opt/ranker /opt/ranker
WORKDIR /data
CMD ["--help"]

FROM ranker AS ray
COPY --from=ray-packages /opt/ranker /opt/ranker
WORKDIR /data
CMD ["--help"]

# The base image must have apt-get.
FROM ranker AS spark
USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=spark-packages /opt/ranker /opt/ranker
COPY deploy/spark-entrypoint /usr/local/bin/spark-entrypoint
ENV SPARK_HOME=/opt/ranker/lib/python3.11/site-packages/pyspark
WORKDIR /data
ENTRYPOINT ["spark-entrypoint"]
CMD ["ranker", "--help"]

FROM ranker AS serve
COPY --from=serve-packages /opt/ranker /opt/ranker
EXPOSE 8000 8001
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s CMD ["python", "-c", "\
from http.client import HTTPConnection; service = HTTPConnection('127.0.0.1', 8000, timeout=2); \
service.request('GET', '/v2/health/ready'); raise SystemExit(service.getresponse().status != 200)"]
# Requires RANKER_KEYS (a file written by `ranker keys new`) or RANKER_NO_KEYS=true.
CMD ["serve", "/repository", "--host", "0.0.0.0"]
