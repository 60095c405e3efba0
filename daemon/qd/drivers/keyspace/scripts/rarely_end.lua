  return {other_text = other_text, taken = taken, bury = bury, unbury = unbury, kept_bytes = kept_bytes}
end
