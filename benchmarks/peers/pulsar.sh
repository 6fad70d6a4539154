#!/bin/sh
# The jars of a Pulsar broker, from Maven Central into benchmarks/peers/jars (about 240 MB); needs Maven and Java 17
# or newer. The benchmarks start a broker of their own on a free loopback port and stop it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
version=${1:-4.0.7}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<EOF
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
EOF
mvn -q -B -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$here/jars" -DincludeScope=runtime
echo "$(ls "$here/jars" | wc -l) jars of Pulsar $version in $here/jars"
