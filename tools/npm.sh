# Packages of the page's build and tests, exactly those of its lock file. To be sourced, in the folder of the page.

# Installs them if they are not there; exit code 3 if that cannot be.
npm_packages() {
  if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo 'there is no Node with npm here' >&2
    exit 3
  fi
  if [ "$(node --print 'process.versions.node.split(".")[0]')" -lt 20 ]; then
    echo 'Node is older than 20 here' >&2
    exit 3
  fi
  if ! cmp -s package-lock.json node_modules/.installed; then
    npm ci --silent --no-audit --no-fund >/dev/null 2>&1 || {
      echo 'the packages of the page cannot be had here' >&2
      exit 3
    }
    cp package-lock.json node_modules/.installed
  fi
}
