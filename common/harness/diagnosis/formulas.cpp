// The formulas that people and kernels get wrong, as tables: for each output, what comes out in the right one's place.
#include <cmath>

#include "common/harness/diagnosis/tests.h"

namespace worklog::diagnosis {
namespace {

// One element of a case, and what formulas make of it.
struct Element {
  const Evidence& of;
  const Case& row;
  const int64_t col;

  double x() const { return row.inputs.x[col]; }  // what the norm takes: h in the add operations
  double xhat() const { return of.xhat(row, col); }
  double gamma() const { return of.reference.gamma()[col]; }
  double beta() const { return of.reference.beta()[col]; }
  double dy() const { return row.inputs.dy[col]; }
  double dh() const { return row.inputs.dh.empty() ? 0 : row.inputs.dh[col]; }
  double want() const { return row.expected.want[col]; }

  double n() const { return of.n; }
  double rows() const { return static_cast<double>(of.reference.rows()); }
  double mean() const { return of.moments(row, col).mean; }
  double variance() const { return of.moments(row, col).variance; }
  double rstd() const { return of.moments(row, col).rstd; }
  double around_zero() const { return variance() + mean() * mean(); }
  double unbiased() const { return variance() * n() / (n() - 1); }
  double rstd_of(double variance) const { return 1 / std::sqrt(variance + of.eps); }
  double rstd_with_eps_outside() const { return 1 / (std::sqrt(variance()) + of.eps); }
  double rstd_without_eps() const { return 1 / std::sqrt(variance()); }

  // The right formula with another mean and another rstd.
  double y(double mean, double rstd) const { return (x() - mean) * rstd * gamma() + beta(); }
  double y_of_x_alone() const {
    return (row.x[col] - row.moments_of_x.mean) * row.moments_of_x.rstd * gamma() + beta();
  }

  // The update of a running statistic.
  double old_mean() const { return of.running_mean[col]; }
  double old_var() const { return of.running_var[col]; }
  double moved(double from, double to) const { return from + of.reference.options().momentum * (to - from); }
};

// Where a formula can be told apart from the right one.
using Condition = bool (*)(const Evidence&);
constexpr Condition has_gamma = [](const Evidence& e) { return e.has("gamma"); };
constexpr Condition has_beta = [](const Evidence& e) { return e.has("beta"); };
constexpr Condition has_both = [](const Evidence& e) { return e.has("gamma") && e.has("beta"); };
constexpr Condition has_residual = [](const Evidence& e) { return e.has("residual"); };
constexpr Condition has_dh = [](const Evidence& e) { return e.has("dh"); };
constexpr Condition has_mean = [](const Evidence& e) { return !e.rms; };
constexpr Condition has_no_mean = [](const Evidence& e) { return e.rms; };
constexpr Condition sums_over_row = [](const Evidence& e) { return !e.batchnorm; };
constexpr Condition trains = [](const Evidence& e) { return !e.running_mean.empty() && e.has("running_mean"); };

struct Formula {
  const char* sentence;
  double (*value)(const Element&);
  Condition applies = [](const Evidence&) { return true; };
};

constexpr Formula zeros = {"zeros came out", [](const Element&) { return 0.0; }};

constexpr Formula wrong_y[] = {
    {"gamma is ignored", [](const Element& e) { return e.xhat() + e.beta(); }, has_gamma},
    {"1 + gamma in place of gamma", [](const Element& e) { return e.xhat() * (1 + e.gamma()) + e.beta(); }, has_gamma},
    {"beta is ignored", [](const Element& e) { return e.xhat() * e.gamma(); }, has_beta},
    {"gamma and beta are ignored", [](const Element& e) { return e.xhat(); }, has_both},
    {"gamma and beta are swapped", [](const Element& e) { return e.xhat() * e.beta() + e.gamma(); }, has_both},
    {"the variance is unbiased (divided by n - 1)",
     [](const Element& e) { return e.y(e.mean(), e.rstd_of(e.unbiased())); }},
    {"eps is outside the root", [](const Element& e) { return e.y(e.mean(), e.rstd_with_eps_outside()); }},
    {"eps is missing", [](const Element& e) { return e.y(e.mean(), e.rstd_without_eps()); }},
    {"the squares' sum is not divided by n",
     [](const Element& e) { return e.y(e.mean(), e.rstd_of(e.variance() * e.n())); }},
    {"the root of the variance is missing",
     [](const Element& e) { return e.y(e.mean(), 1 / (e.variance() + e.of.eps)); }},
    {"not divided by the standard deviation", [](const Element& e) { return e.y(e.mean(), 1); }},
    {"a mean is subtracted, as LayerNorm does",
     [](const Element& e) { return e.y(e.row.mean_x, e.rstd_of(e.variance() - e.row.mean_x * e.row.mean_x)); },
     has_no_mean},
    {"the mean is not subtracted", [](const Element& e) { return e.y(0, e.rstd()); }, has_mean},
    {"the variance is taken around zero, not around the mean",
     [](const Element& e) { return e.y(e.mean(), e.rstd_of(e.around_zero())); }, has_mean},
    {"the mean is ignored, as RMSNorm does", [](const Element& e) { return e.y(0, e.rstd_of(e.around_zero())); },
     has_mean},
    {"the running statistics are used in place of the batch's",
     [](const Element& e) { return e.y(e.old_mean(), e.rstd_of(e.old_var())); }, trains},
    {"the residual is not added", [](const Element& e) { return e.y_of_x_alone(); }, has_residual},
    {"x itself came out", [](const Element& e) { return e.x(); }},
    zeros,
};

constexpr Formula wrong_h[] = {
    {"the residual is not added", [](const Element& e) { return e.row.x[e.col]; }},
    {"x is not added to the residual", [](const Element& e) { return e.row.residual[e.col]; }},
};

// dx = scale * (w - xhat * c2 - c1) + dh.
struct Gradient {
  double w, scale, c1, c2, xhat, dh;

  double value() const { return scale * (w - xhat * c2 - c1) + dh; }
  Gradient with_scale(double other) const { return {w, other, c1, c2, xhat, dh}; }
  Gradient with_sums(double other_c1, double other_c2) const { return {w, scale, other_c1, other_c2, xhat, dh}; }
  Gradient with_factors(double of_c1, double of_c2) const { return with_sums(c1 * of_c1, c2 * of_c2); }
};

Gradient gradient(const Element& e, bool with_gamma = true) {
  const double gamma = with_gamma ? e.gamma() : 1;
  if (e.of.batchnorm) {
    const Reference& sums = e.of.reference;
    return {e.dy(), gamma * e.rstd(), sums.sum_dy(e.col) / e.n(), sums.sum_dy_xhat(e.col) / e.n(), e.xhat(), e.dh()};
  }
  const double c1 = with_gamma ? e.row.mean_wdy : e.row.mean_dy;
  const double c2 = with_gamma ? e.row.mean_wdyx : e.row.mean_dyx;
  return {gamma * e.dy(), e.rstd(), c1, c2, e.xhat(), e.dh()};
}

constexpr Formula wrong_dx[] = {
    {"gamma is ignored", [](const Element& e) { return gradient(e, false).value(); }},
    {"the term with mean(wdy) is missing", [](const Element& e) { return gradient(e).with_factors(0, 1).value(); }},
    {"the term with xhat * mean(wdy * xhat) is missing",
     [](const Element& e) { return gradient(e).with_factors(1, 0).value(); }},
    {"both mean terms are missing", [](const Element& e) { return gradient(e).with_sums(0, 0).value(); }},
    {"the sums are not divided by n", [](const Element& e) { return gradient(e).with_factors(e.n(), e.n()).value(); }},
    {"the factor rstd is missing", [](const Element& e) { return gradient(e).with_scale(1).value(); }},
    zeros,
    {"the sums are taken without gamma",
     [](const Element& e) { return gradient(e).with_sums(e.row.mean_dy, e.row.mean_dyx).value(); }, sums_over_row},
    {"dh is not added", [](const Element& e) { return gradient(e).value() - e.dh(); }, has_dh},
};

constexpr Formula variance_came_out = {"the variance came out", [](const Element& e) { return e.variance(); }};
constexpr Formula unbiased_rstd = {"the variance is unbiased (divided by n - 1)",
                                   [](const Element& e) { return e.rstd_of(e.unbiased()); }};
constexpr Formula eps_outside = {"eps is outside the root", [](const Element& e) { return e.rstd_with_eps_outside(); }};

constexpr Formula wrong_mean[] = {
    {"the sum is not divided by n", [](const Element& e) { return e.mean() * e.n(); }},
    {"rstd came out in place of the mean", [](const Element& e) { return e.rstd(); }},
    zeros,
};

constexpr Formula wrong_rstd[] = {
    variance_came_out,
    {"the standard deviation came out, not 1 over it", [](const Element& e) { return 1 / e.rstd(); }},
    {"the mean came out in place of rstd", [](const Element& e) { return e.mean(); }},
    unbiased_rstd,
    eps_outside,
    {"eps is missing", [](const Element& e) { return e.rstd_without_eps(); }},
    zeros,
};

constexpr Formula added_twice = {"everything was added twice: the sums of an earlier run were not cleared",
                                 [](const Element& e) { return 2 * e.want(); }};
constexpr Formula divided_by_rows = {"the sum is divided by the number of rows",
                                     [](const Element& e) { return e.want() / e.rows(); }};
constexpr Formula sum_with_gamma = {"the sum has a factor gamma",
                                    [](const Element& e) { return e.want() * e.gamma(); }};

constexpr Formula wrong_dgamma[] = {
    zeros,
    {"dbeta came out in place of dgamma", [](const Element& e) { return e.of.reference.sum_dy(e.col); }},
    added_twice,
    divided_by_rows,
    sum_with_gamma,
};

constexpr Formula wrong_dbeta[] = {
    zeros,
    {"dgamma came out in place of dbeta", [](const Element& e) { return e.of.reference.sum_dy_xhat(e.col); }},
    added_twice,
    divided_by_rows,
    sum_with_gamma,
};

constexpr Formula wrong_running_mean[] = {
    zeros,
    {"not updated", [](const Element& e) { return e.old_mean(); }},
    {"the batch's own value came out", [](const Element& e) { return e.mean(); }},
    {"momentum weighs the old value, not the new one",
     [](const Element& e) { return e.moved(e.mean(), e.old_mean()); }},
};

constexpr Formula wrong_running_var[] = {
    zeros,
    {"not updated", [](const Element& e) { return e.old_var(); }},
    {"the batch's own value came out", [](const Element& e) { return e.unbiased(); }},
    {"momentum weighs the old value, not the new one",
     [](const Element& e) { return e.moved(e.unbiased(), e.old_var()); }},
    {"the variance is biased (divided by n, not n - 1)",
     [](const Element& e) { return e.moved(e.old_var(), e.variance()); }},
};

constexpr Formula wrong_save_mean[] = {zeros};
constexpr Formula wrong_save_invstd[] = {zeros, variance_came_out, unbiased_rstd, eps_outside};

struct Table {
  std::string_view output;
  std::span<const Formula> formulas;
};
constexpr Table tables[] = {
    {"y", wrong_y},
    {"h", wrong_h},
    {"dx", wrong_dx},
    {"mean", wrong_mean},
    {"rstd", wrong_rstd},
    {"dgamma", wrong_dgamma},
    {"dbeta", wrong_dbeta},
    {"running_mean", wrong_running_mean},
    {"running_var", wrong_running_var},
    {"save_mean", wrong_save_mean},
    {"save_invstd", wrong_save_invstd},
};

}  // namespace

// The one that misses least.
std::string wrong_formula(const Evidence& evidence) {
  std::string best;
  double least = infinity;
  for (const Table& table : tables) {
    if (table.output != evidence.name) continue;
    for (const Formula& formula : table.formulas) {
      if (!formula.applies(evidence)) continue;
      const double miss = miss_of(evidence.cases, evidence.tolerance, [&](const Case& c, int64_t col) {
        return formula.value({evidence, c, col});
      });
      if (miss < least) {
        least = miss;
        best = formula.sentence;
      }
    }
  }
  return best;
}

}  // namespace worklog::diagnosis
