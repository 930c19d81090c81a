# Two images from one file: `operator` (the controller, no torch) and `loader` (what runs on the nodes, with torch).
#
#   docker buildx build --target operator -t modelweights-operator .
#   docker buildx build --target loader   -t modelweights-loader   .
#
# Behind a proxy with a certificate authority of its own, hand that in as a secret; it stays out of every layer:
#   --secret id=pip_ca,src=/path/to/ca.pem --build-arg PIP_CERT=/run/secrets/pip_ca
#
# Layers, from the one that changes least: base, Python, torch, the pinned packages, our code (alone in the last one, so
# that a registry and a node move only that one at the next release).

ARG BASE=docker.io/library/debian:trixie-slim
# pip:    torch's CPU wheels from TORCH_INDEX_URL; what we publish.
# debian: the distribution's torch, for sites that don't reach that index; our end-to-end tests run on it.
# cuda:   the default index' torch with its CUDA libraries, for `validation.device: cuda`; some 5 GB.
ARG TORCH=pip

# ----------------------------------------------------------------------------------------------------- Python, no torch
# hadolint ignore=DL3006
FROM ${BASE} AS python
# A set-user-ID program has no use in a container of one unprivileged user, and scanners ask about each.
# The versions of Debian's packages are those of the release's security updates, so they aren't pinned.
# hadolint ignore=DL3008
RUN printf 'path-exclude=%s\n' '/usr/share/man/*' '/usr/share/info/*' '/usr/share/locale/*' '/usr/share/lintian/*' \
        '/usr/share/doc/*' '*.h' '*.hpp' '*.a' '/usr/lib/python3/dist-packages/torch/bin/*' \
        >/etc/dpkg/dpkg.cfg.d/90-slim \
    && printf 'path-include=%s\n' '/usr/share/doc/*/copyright' \
        '/usr/lib/python3/dist-packages/torch/bin/torch_shm_manager' >>/etc/dpkg/dpkg.cfg.d/90-slim \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3 \
    && groupadd --gid 65532 nonroot \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin nonroot \
    && find / -xdev -perm /6000 -type f -exec chmod ug-s {} + \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/*
# The root file system is read-only at run time: nothing to write bytecode into, it's compiled here.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1

# ------------------------------------------------------------------------ where packages are installed; never published
FROM python AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && python3 -m venv /opt/pip \
    && python3 -m venv --without-pip /opt/venv

# --------------------------------------------------------------------------------------------------- operator: packages
FROM builder AS operator-venv
ARG PIP_CERT
COPY requirements/operator.txt /requirements/
# Bytecode that is never checked against its source spares the start a stat per module, and doesn't depend on the
# times that a copy of the file gets. The Kubernetes client is 60 MB of generated source, most of it docstrings, and as
# much bytecode: it's kept as bytecode without docstrings only, which also makes the start faster.
RUN --mount=type=secret,id=pip_ca \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --require-hashes \
        -r /requirements/operator.txt \
    && rm -rf /opt/venv/include /opt/venv/share \
    && find /opt/venv/lib -regex '.*\.\(h\|hpp\|a\|pyx\|pxd\|pyi\)' -delete \
    && python3 -OO -m compileall -q -b -j 0 /opt/venv/lib/python3*/site-packages/kubernetes \
    && find /opt/venv/lib/python3*/site-packages/kubernetes -name '*.py' -delete \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib \
    && chmod -R a+rX /opt/venv

# ------------------------------------------------------------------------------------------- loader: the kinds of torch
FROM builder AS venv-pip
ARG PIP_CERT
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG TORCH_VERSION=2.15.0
COPY requirements/loader.txt requirements/loader-pip.txt /requirements/
# That index publishes builds of its own, whose hashes no lock file over the default index can hold: the version is
# pinned, and everything that torch depends on comes by hash.
RUN --mount=type=secret,id=pip_ca \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --require-hashes \
        -r /requirements/loader.txt -r /requirements/loader-pip.txt \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps \
        --index-url "${TORCH_INDEX_URL}" "torch==${TORCH_VERSION}"

FROM builder AS venv-cuda
ARG PIP_CERT
COPY requirements/loader.txt requirements/loader-cuda.txt /requirements/
RUN --mount=type=secret,id=pip_ca \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --require-hashes \
        -r /requirements/loader.txt -r /requirements/loader-cuda.txt

FROM builder AS venv-debian
ARG PIP_CERT
COPY requirements/loader.txt /requirements/
RUN --mount=type=secret,id=pip_ca \
    sed -i 's/^include-system-site-packages = .*/include-system-site-packages = true/' /opt/venv/pyvenv.cfg \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --require-hashes \
        -r /requirements/loader.txt

# hadolint ignore=DL3006
FROM venv-${TORCH} AS loader-venv
# Headers, static libraries, programs and test data of torch: for building extensions, which nobody does here. Its
# import insists on one program, the manager of shared memory.
RUN rm -rf /opt/venv/include /opt/venv/share /opt/venv/lib/python3*/site-packages/torch/include \
        /opt/venv/lib/python3*/site-packages/torch/test /opt/venv/lib/python3*/site-packages/torch/share \
    && find /opt/venv/lib -path '*/torch/bin/*' ! -name torch_shm_manager -delete \
    && find /opt/venv/lib -regex '.*\.\(h\|hpp\|a\|pyx\|pxd\)' -delete \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib \
    && chmod -R a+rX /opt/venv

FROM python AS runtime-pip

FROM python AS runtime-cuda

FROM python AS runtime-debian
# Debian's torch depends on much that `import torch` and a load never open: tests, symbolic maths, and, behind Open MPI,
# a compiler and a GPU runtime. Purging them halves the image. A name that a later release lacks is only warned about.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-torch \
    && dpkg --purge --force-depends libtorch-test libllvm17t64 libamd-comgr2 libamdhip64-5 libhsa-runtime64-1 \
        python3-expecttest python3-fsspec python3-hypothesis python3-networkx python3-requests python3-sympy \
        python3-mpmath \
    && rm -rf /usr/lib/python3/dist-packages/torch/test /usr/lib/python3/dist-packages/torch/include \
    && find /usr/lib/python3/dist-packages -type d -name tests -prune -exec rm -rf {} + \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/lib/dpkg/*-old /var/log/*

# ---------------------------------------------------------------- our code: compiled apart, so that it's one last layer
# The packages are copied, not installed: a build back end would be one more download for two folders and a launcher.
FROM builder AS operator-code
ARG VERSION=0.0.0
COPY operator/modelweights_operator /code/modelweights_operator
RUN site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib", "venv", {"base": "/opt/venv"}))') \
    && mkdir -p "/out${site}" /out/opt/venv/bin \
    && mv /code/modelweights_operator "/out${site}/" \
    && mkdir "/out${site}/modelweights_operator-${VERSION}.dist-info" \
    && printf 'Metadata-Version: 2.1\nName: modelweights-operator\nVersion: %s\n' "${VERSION}" \
        >"/out${site}/modelweights_operator-${VERSION}.dist-info/METADATA" \
    && printf '%s\n' '#!/opt/venv/bin/python' 'import sys' '' \
        'from modelweights_operator.__main__ import main' '' 'sys.exit(main())' \
        >/out/opt/venv/bin/modelweights-operator \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s /out /out/opt/venv/lib \
    && chmod -R a+rX,go-w /out && chmod 755 /out/opt/venv/bin/*

FROM builder AS loader-code
ARG VERSION=0.0.0
COPY loader/modelweights_loader /code/modelweights_loader
RUN site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib", "venv", {"base": "/opt/venv"}))') \
    && mkdir -p "/out${site}" /out/opt/venv/bin \
    && mv /code/modelweights_loader "/out${site}/" \
    && mkdir "/out${site}/modelweights_operator-${VERSION}.dist-info" \
    && printf 'Metadata-Version: 2.1\nName: modelweights-operator\nVersion: %s\n' "${VERSION}" \
        >"/out${site}/modelweights_operator-${VERSION}.dist-info/METADATA" \
    && printf '%s\n' '#!/opt/venv/bin/python' 'import sys' '' \
        'from modelweights_loader.cli import main' '' 'sys.exit(main())' \
        >/out/opt/venv/bin/modelweights-loader \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash -s /out /out/opt/venv/lib \
    && chmod -R a+rX,go-w /out && chmod 755 /out/opt/venv/bin/*

# ----------------------------------------------------------------------------------------------------------- the images
FROM python AS operator
ARG VERSION=0.0.0
LABEL org.opencontainers.image.title="modelweights-operator" \
      org.opencontainers.image.description="Stages LLM checkpoints on Kubernetes nodes: the controller" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
WORKDIR /
USER 65532:65532
ENTRYPOINT ["python", "-m", "modelweights_operator"]
COPY --from=operator-venv /opt/venv /opt/venv
COPY --from=operator-code /out /

# hadolint ignore=DL3006
FROM runtime-${TORCH} AS loader
ARG VERSION=0.0.0
LABEL org.opencontainers.image.title="modelweights-loader" \
      org.opencontainers.image.description="Warms LLM checkpoints on a node and proves that they load" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
WORKDIR /
USER 65532:65532
ENTRYPOINT ["modelweights-loader"]
COPY --from=loader-venv /opt/venv /opt/venv
COPY --from=loader-code /out /
